# As tree.story: what acts on no tree or copies one, remotes, volumes, and agents.

# Nothing is mounted.
cd .
$ mkdir p q empty man; echo one > p/a.txt; mkdir p/src; echo 'fn main() {}' > p/src/main.rs
= frobnicate
= commit
=json commit
+ concepts
+ concepts --nosuch
+ more
+ more --nosuch
+ man man
+ man
= completion bash
=json completion fish
+ completion nosuch
= completion
+ daemon
+ remote-reader
+ remote-reader home 1 < /dev/null
+ serve volumes --socket p/a.txt
+ serve csi --node-id node --endpoint nosuch
+ mcp < /dev/null
+ mcp --nosuch
+ doctor nosuch
+ doctor p
= config show
= fork 1 fork
= export 1 export

# Agents.
cd q
+ agent status
+ agent status nosuch
= agent install claude-code -n
= agent install codex
=json agent install claude-code
= agent status
+ agent install nosuch
= agent uninstall codex
=json agent uninstall claude-code
+ agent uninstall nosuch
+ agent hook --agent claude-code < /dev/null
= agent hook --agent claude-code < ../p/a.txt

# Copies.
cd .
$ cd p && ckptfs mount --io passthrough --seal off . && cd ../p && ckptfs checkpoint -t v1 -m "The first" && echo two >> a.txt && ckptfs checkpoint -t v2
cd p
$ echo '{"hook_event_name":"UserPromptSubmit","session_id":"s1","prompt":"Go"}' > ../prompt
= agent hook --agent claude-code < ../prompt
=json agent hook --agent claude-code < ../prompt
+ fork v1 ../fork -n
= fork v1 ../fork1
=json fork v1 ../fork2
= fork v1 ../fork1
+ fork 99 ../fork3
= export v1 ../export -n
+ export v1 ../export
= export v1 - | tar -t
= export v1 ../export --check
$ echo changed > ../export/a.txt
+ export v1 ../export --check
= export v1 ../fork1
+ export 99 ../export
cd .
= import -n fork1
= import fork1 --into imported1
=json import fork2 --into imported2
= import fork1 --into imported1
+ import nosuch
= import empty
= import fork1 --into fork1/in

# Remotes.
+ remote list
+ remote list --nosuch
+ remote log nas
+ remote remove nas
+ remote forget nas 12345678
+ remote prune nas
+ remote add nas ftp://nosuch
+ push nas -C p
+ pull nas --into x
= remote add nas repository
=json remote add disk repository
= remote list
=json remote list
cd p
= remote log nas
= push nas v1
=json push nas v2
= push nas v1
=json remote log nas
= pull nas v1 --into ../pulled1
=json pull nas v1 --into ../pulled2
= pull nas
= remote prune nas --keep-last 1 -n
=json remote prune nas --keep-last 1
= remote forget nas 12345678
=json remote forget nas 12345678
= remote remove nas
=json remote remove disk

# Volumes.
cd .
+ volumes ls
+ volumes ls --nosuch
= volumes create data
=json volumes create other -o keep=4h:1d -o on-remove=trash
= volumes create data -o keep=1h
+ volumes create 'a b'
= volumes create x -o nosuch
= volumes create x -o size=1
= volumes create x -o checkpoint=1 -o fromSnapshot=1
+ volumes ls
+ volumes inspect data
+ volumes inspect nosuch
= checkpoint --volume data
= log --volume data
= log --volume nosuch
= volumes rm data -n
= volumes rm data
=json volumes rm other
+ volumes rm data
= volumes ls --trash
= volumes recover other
$ ckptfs volumes rm other
=json volumes recover other
+ volumes recover other
$ ckptfs volumes rm other
= volumes purge other
$ ckptfs volumes create old -o on-remove=trash && ckptfs volumes rm old
=json volumes purge old
+ volumes purge other
= umount p
