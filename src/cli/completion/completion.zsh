#compdef ckptfs
_ckptfs() {
    local -a whole whole_said open open_said
    local line value
    for line in "${(@f)$(CKPTFS_COMPLETE=zsh ckptfs -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)}"; do
        value=${line%%$'\t'*}
        case $value in
            ('') ;;
            (*[/:]) open+=("$value") open_said+=("${line/$'\t'/  }") ;;
            (*) whole+=("$value") whole_said+=("${line/$'\t'/  }") ;;
        esac
    done
    # What goes on has no space behind it.
    (( $#whole )) && compadd -l -V ckptfs -d whole_said -a whole
    (( $#open )) && compadd -l -V ckptfs -S '' -d open_said -a open
    return 0
}
if [[ ${funcstack[1]} == _ckptfs ]]; then
    _ckptfs "$@"
else
    compdef _ckptfs ckptfs
fi
