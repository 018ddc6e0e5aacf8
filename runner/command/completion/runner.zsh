# Words of `runner` and of `python -m runner`. In ~/.zshrc, behind compinit:
# eval "$(python -m runner --shell-completion zsh)"
_runner() {
    local first=1 line word
    local -a ended open
    if [[ $words[2] == -m && $words[3] == runner ]]; then
        first=3
    elif [[ $words[1] == *python* ]]; then
        _python "$@"
        return
    fi
    (( CURRENT > first )) || return
    local call=("${(@)words[1,first]}") typed=("${(@)words[first+1,CURRENT-1]}")
    for line in "${(@f)$(${~call} --shell-completion words "${(@)typed}" "$PREFIX" 2> /dev/null)}"; do
        word=${${line%%$'\t'*}//:/\\:}
        case $word in
            '') ;;
            *[=./]) open+=("$word:${line#*$'\t'}") ;;
            *) ended+=("$word:${line#*$'\t'}") ;;
        esac
    done
    _describe -t words word ended -- open -S ''
}
compdef _runner runner python python3
