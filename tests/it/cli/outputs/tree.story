# The commands of tests/it/cli/outputs.rs on one tree, in order: of each verb a success, nothing to say, and an error.
#   cd DIR      where the next ones run, from the top of the sandbox
#   $ COMMAND   something that the shell does; then it waits until the daemon knows that all files are closed
#   = VERB      a verb, as text; =json VERB: as JSON; + VERB: as text, then as JSON

# Nothing is mounted.
cd .
$ mkdir p q empty; echo one > p/a.txt; mkdir p/src; echo 'fn main() {}' > p/src/main.rs; echo x > q/x
+ status
= log
= checkpoint
+ umount
+ mount nosuch
= mount
= prompt
=json prompt
= status -C nosuch
+ config set retention.keep-last
+ config check

# Mounted, without a checkpoint.
= mount --io passthrough --seal off p
=json mount --io passthrough --seal off q
= mount p
cd p
+ status
+ log
+ log nosuch
= log a.txt
= diff
= show
+ tag
+ pin
+ ops
= ops --all
+ undo
+ redo
+ rewind
+ branch list
+ branch conflicts
= merge nosuch
$ true
+ du
+ gc
= verify
= restore a.txt
$ true
= restore
$ true
+ prompt
+ prompt --nosuch
+ browse
= delete latest

# Checkpoints.
= checkpoint -t v1 -m "The first"
$ echo two >> a.txt; echo 'fn main() { main() }' > src/main.rs
=json checkpoint -m "second"
+ checkpoint --if-changed
+ checkpoint -t v1
= checkpoint -t latest
= checkpoint -F nosuch
= checkpoint before
$ echo three > b.txt; rm src/main.rs; mv a.txt c.txt; ln -s c.txt link
+ status
= status c.txt
+ status --by process
+ status -v
= status --metrics
+ diff
+ diff --stat
= diff -p
+ diff 1 1
+ diff nosuch
$ ckptfs checkpoint -t v2 -m 'third'
+ log
= log -n 0
= log c.txt
=json log c.txt
= log --graph
= log -p -n 1
= log --before 99
= log --deleted
= log --since soon
+ log --tag 'v*'
+ log --tag nosuch
+ show
= show 1:a.txt
= show 1:src
+ show 1:nosuch
= show 9
= show v
= show v2:link/x
= show 1:
+ show -l 1:
= show a.txt
+ show -l 1:a.txt
= show -l v2:link
+ show -l 1

# Names, pins, deletion.
+ tag
+ tag 2 second
+ tag 1 second
= tag -m second middle
= tag -d middle
= tag -d middle
= tag 2
= tag 2 live
= tag -m v1 first
=json tag -m first v1
+ tag -m nosuch other
= tag 1 t1 t2
= tag -d t1
=json tag -d t2
+ tag -d t1
+ pin 1 -r "the base"
+ pin
+ delete 1
+ pin 9
= pin -d 1
= pin -d 1
=json pin -d 1
+ pin -d 9
= delete v
= delete 2 -n
=json delete 2
= delete 2
+ log --deleted
+ ops
= ops -n 2
= ops --before 1
= ops --before 1 -n 0
+ ops --nosuch
= ops --all
+ ops --all
= undo -n
= undo
$ true
=json redo
$ true
=json undo
$ true
= redo -n
= redo
$ true
= undo
$ true
= undo --to 99
$ true
= undo 99
$ true
= redo 9
$ true
= undo nosuch
$ true

# Back.
$ echo broken > c.txt
+ restore -n c.txt
= restore c.txt
$ true
$ echo broken > c.txt
=json restore c.txt
$ true
+ restore c.txt
+ restore nosuch
= restore 9 c.txt
$ true
= restore v1 nosuch
$ true
= restore lastest
$ true
= restore v1
$ true
= log --graph
= undo
$ true
= run -- sh -c 'echo made > made'
$ true
=json run -- sh -c 'echo again > made'
$ true
=json run --rollback on-failure -- sh -c 'echo broken > made; exit 3'
$ true
= run --rollback on-failure -- sh -c 'echo broken > made; exit 3'
$ true
= run -- true
$ true
= run -- nosuch-command
$ true
= run --at 1 -- cat a.txt
$ true
= run --at 99 -- true
$ true
= run
$ true
+ bisect v1 v2 -- test -e a.txt
+ bisect v2 v1 -- true
= bisect v1 v2 -- true

# What an agent did.
$ echo '{"hook_event_name":"UserPromptSubmit","session_id":"s1","prompt_id":"p1","prompt":"Change c.txt"}' | ckptfs agent hook --agent claude-code; echo agent > c.txt
+ rewind
+ rewind 9
= rewind --session nosuch
= rewind -1 -n
= rewind -1 -y
$ true
$ echo agent > c.txt
=json rewind -1 -y
$ true

# Branches.
$ ckptfs checkpoint
= branch create fix
=json branch create other
+ branch create fix
= branch create at --at 99
$ echo fixed > ../p@fix/c.txt; echo new > ../p@fix/new; echo other > ../p@other/c.txt
+ branch list
+ branch list --nosuch
+ branch diff fix
= branch diff -p fix
+ branch diff nosuch
+ branch conflicts
= branch conflicts --check
+ branch conflicts --nosuch
= branch run fix -- cat c.txt
$ true
=json branch run other -- true
$ true
+ branch run fix -- nosuch-command
+ branch update fix
+ branch update nosuch
= merge fix -n
= merge fix
$ true
=json merge fix
$ true
+ merge other
= merge other --markers -n
=json merge other --theirs
$ true
= undo
$ true
= merge other --keep-both
$ true
+ branch mount nosuch
= branch mount fix
$ ckptfs -C .. umount p@fix && ckptfs -C .. umount p@other
= branch mount fix
=json branch mount other
+ branch drop nosuch
= branch drop fix -n
= branch drop fix
=json branch drop other
= branch list
= branch list --dropped
= branch restore fix
=json branch restore other
+ branch restore nosuch
= branch nosuch

# Administration.
+ config set retention.keep-last 5
+ config get retention.keep-last
+ config get nosuch
= config get retention.auto
= config set retention.keep-last x
= config show
=json config show
= config show --origin
= config show --all
+ config show --nosuch
= config check
=json config check
$ mkdir -p ../.config/ckptfs && printf '[retention]\nnosuch = 1\n' > ../.config/ckptfs/config.toml
+ config check
= gc
+ config write ../.config/ckptfs/config.toml
$ : > ../.config/ckptfs/config.toml
+ config write ../.config/ckptfs/config.toml
$ rm ../.config/ckptfs/config.toml
= du
+ du v1
+ du 99
= gc -n -v --keep-last 1
= delete v1 --now -y
= gc
=json gc
+ gc --keep-last x
= gc --dedup -n
+ gc --dedup
+ gc --dedup --with nosuch
+ verify
= verify --deep
+ verify 99
= verify --repair
cd .
+ umount nosuch
= umount p
=json umount q
# A namespace of another test may have it for a moment.
$ while pgrep -f "ckptfs daemon --backing $PWD/p " > /dev/null; do sleep 0.01; done
+ verify -C p
+ verify -C empty
$ rm "$(grep -lx again p/.ckptfs/layers/*/objects/* | head -n 1)"
+ verify -C p
+ verify --repair -n -C p
+ verify --repair -C p
= log -C p -n 1
= checkpoint -C p
