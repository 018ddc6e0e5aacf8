# Words of `runner` and of `python -m runner`. In ~/.config/fish/config.fish:
# python -m runner --shell-completion fish | source
function __runner_words
    set -l typed (commandline -opc)
    set -l first 1
    if test "$typed[2]" = -m
        set first 3
    end
    set -l rest
    if test (count $typed) -gt $first
        set rest $typed[(math $first + 1)..]
    end
    $typed[1..$first] --shell-completion words $rest (commandline -ct) 2>/dev/null
end
complete -c runner -f -a '(__runner_words)'
for python in python python3
    complete -c $python -n 'string match -q -- "* -m runner *" (commandline -pc)' -f -a '(__runner_words)'
end
