_ckptfs() {
    # Bash splits words at ':', '=' and '@' too: what has no space before it belongs to the word before.
    local line=${COMP_LINE:0:COMP_POINT} words=() rest word tail prefix candidate i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%[![:space:]]*}"}
        word=${COMP_WORDS[i]}
        [[ $i -lt $COMP_CWORD ]] || word=$rest
        if [[ $i -gt 0 && $rest == "$line" ]]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
        line=${rest#"$word"}
    done
    word=${words[${#words[@]}-1]}
    # Only what is behind the last of them is replaced.
    tail=${word##*[:=@]}
    [[ $COMP_WORDBREAKS == *:* ]] || tail=$word
    prefix=${word%"$tail"}
    # As they were meant: without what keeps the shell from reading them otherwise.
    words=("${words[@]//\\/}")
    COMPREPLY=()
    while IFS= read -r candidate; do
        printf -v candidate %q "$candidate"
        candidate=${candidate#"$prefix"}
        # What is a whole word has a space behind it.
        [[ $candidate == *[/:=] ]] || candidate+=' '
        COMPREPLY+=("$candidate")
    done < <(CKPTFS_COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) ckptfs -- "${words[@]}" 2>/dev/null && echo)
    [[ ${COMPREPLY[0]} != "'' " ]] || COMPREPLY=()
}
complete -o nospace -o nosort -F _ckptfs ckptfs 2>/dev/null || complete -o nospace -F _ckptfs ckptfs
