# Words of `runner` and of `python -m runner`. In ~/.bashrc: eval "$(python -m runner --shell-completion bash)"
_runner() {
    local line=${COMP_LINE:0:COMP_POINT} first=1 words behind
    IFS=$' \t' read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    if [[ ${words[1]} == -m ]]; then
        [[ ${words[2]} == runner && ${#words[@]} -gt 3 ]] || return
        first=3
    elif [[ ${words[0]} == *python* ]]; then
        return  # another command, whose words are files
    fi
    local call=("${words[@]:0:first}")
    mapfile -t COMPREPLY < <("${call[@]/#\~/$HOME}" --shell-completion words "${words[@]:first}" 2> /dev/null)
    COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[=./] ]] && compopt -o nospace
    # Readline replaces what stands behind the last of these alone.
    behind=${words[-1]##*["$COMP_WORDBREAKS"]}
    COMPREPLY=("${COMPREPLY[@]#"${words[-1]%"$behind"}"}")
}
complete -F _runner runner
complete -o default -F _runner python python3
