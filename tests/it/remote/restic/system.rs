//! System-wide remotes: a service has no home directory.

use crate::cli::support::Sandbox;
use crate::common::page::fits;

/// Sets up a namespace with a private `/etc`, and a function that prints output and status of a
/// command.
const SETUP: &str = r#"
mkdir etc q && cp /etc/passwd /etc/group etc/ && mount --bind etc /etc || exit 9
unit() { env -i "$(command -v ckptfs)" "$@"; }
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
try() { echo "+ $*"; "$@" 2>&1; code=$?; [ $code = 0 ] || echo "status $code"; }
(umask 077; echo secret > password)
"#;

#[track_caller]
fn says(sandbox: &Sandbox, script: &str, said: &str) {
    let mut shell = sandbox.hermetic("unshare", "");
    let script = [SETUP, script].concat();
    shell.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let ran = sandbox.run(shell);
    let said: Vec<String> = said.trim().lines().map(str::to_owned).collect();
    let out = ran.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(fits(&said, &lines), "{out}\n{}", ran.err());
}

fn project() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.ckptfs_in("p", &["checkpoint"]).ok();
    sandbox
}

const UNIT: &str = r#"
try unit -C p push nas
try unit remote add nas "$PWD/repository" --password-file "$PWD/password"
try unit remote add --system nas "$PWD/repository" --password-file "$PWD/password"
try unit -C p push nas
try unit remote
try unit --json remote
try unit -C p remote log nas
(umask 077; echo mine > my-password)
try ckptfs remote add nas "$PWD/mine" --password-file my-password
try ckptfs remote add home "$PWD/home" --password-file my-password
try ckptfs remote
try ckptfs remote remove nas
try ckptfs remote remove nas
try unit mount --push nas q
try unit -C q checkpoint
n=0; until unit -C q remote log nas 2>&1 | grep -q '^ *1 '; do n=$((n + 1)); [ $n -lt 600 ] || break; sleep 0.1; done
try unit -C q remote log nas
try unit umount q
try unit remote remove --system nas
try unit remote
"#;

const UNIT_SAYS: &str = r#"
+ unit -C p push nas
Error: your remotes cannot be found
Hint: set HOME or XDG_CONFIG_HOME; or, as root, name a remote for the whole system: ckptfs remote add --system NAME URL
status 1
+ unit remote add nas ...
Error: your remotes cannot be found
...
status 1
+ unit remote add --system ...
nas is [DIR]/repository; ckptfs push nas sends what it has not
+ unit -C p push nas
checkpoint 1 is snapshot ...
+ unit remote
nas  [DIR]/repository  (system)
+ unit --json remote
[{"name":"nas","url":"[DIR]/repository","password-file":"[DIR]/password","file":"/etc/ckptfs/remotes.toml"}]
+ unit -C p remote log nas
... 1 ...
+ ckptfs remote add nas ...
nas is [DIR]/mine; ...
+ ckptfs remote add home ...
home is ...
+ ckptfs remote
home  [DIR]/home
nas   [DIR]/mine
+ ckptfs remote remove nas
nas is forgotten; what is stored there stays
+ ckptfs remote remove nas
Error: nas is a remote of the system, in /etc/ckptfs/remotes.toml
Hint: as root: ckptfs remote remove --system nas
status 1
+ unit mount --push nas q
...
+ unit -C q checkpoint
1
+ unit -C q remote log nas
... 1 ...
+ unit umount q
...
+ unit remote remove --system nas
nas is forgotten; what is stored there stays
+ unit remote
Error: your remotes cannot be found
...
status 1
"#;

/// Failed before: a systemd unit, which has no HOME, received "your remotes cannot be found. Hint:
/// set HOME".
#[test]
fn a_service_without_a_home_pushes_to_a_remote_of_the_system() {
    says(&project(), UNIT, UNIT_SAYS);
}

/// The file names commands to run, and only root may read the password.
#[test]
fn a_remote_of_the_system_is_root_s_and_its_password_too() {
    let script = r#"
chmod 755 . && cp "$(command -v ckptfs)" tool
try nobody env -i ./tool remote add --system nas "$PWD/r" --password-file "$PWD/password"
try unit remote add --system nas "$PWD/repository" --password-file "$PWD/password"
try nobody env -i ./tool remote
try nobody env -i HOME=/nonexistent ./tool remote
chmod 644 password
try unit -C p push nas
chmod 600 password; chown 65534 password
try unit -C p push nas
chown 0 password; chown 65534 /etc/ckptfs/remotes.toml
try unit -C p push nas
chown 0 /etc/ckptfs/remotes.toml; chmod 620 /etc/ckptfs/remotes.toml
try unit -C p push nas
chmod 600 /etc/ckptfs/remotes.toml
try unit -C p push nas
"#;
    let said = r#"
+ nobody env -i ./tool remote add --system ...
Error: only root can change /etc/ckptfs/remotes.toml
Hint: leave --system out, for a remote of your own
status 1
+ unit remote add --system ...
nas is ...
+ nobody env -i ./tool remote
Error: your remotes cannot be found
...
status 1
+ nobody env -i HOME=/nonexistent ./tool remote
no remote is named yet: ckptfs remote add NAME URL
+ unit -C p push nas
Error: others may read the password in [DIR]/password
...
status 1
+ unit -C p push nas
Error: [DIR]/password has the password of a remote of the system, and belongs to another user than root
...
status 1
+ unit -C p push nas
Error: /etc/ckptfs/remotes.toml: others may write to it, and it says which commands are run
...
status 1
+ unit -C p push nas
Error: /etc/ckptfs/remotes.toml: others may write to it, and it says which commands are run
...
status 1
+ unit -C p push nas
checkpoint 1 is snapshot ...
"#;
    says(&project(), script, said);
}

/// Failed before: `status` reported no pushes, neither completed nor failed.
#[test]
fn pushes_and_those_that_failed_are_in_status() {
    let script = r#"
mkdir r && echo 1 > r/a && unit mount r > /dev/null 2>&1 && unit -C r checkpoint > /dev/null
metrics() { "$@" status --metrics | grep -E '^ckptfs_(last_push|push_f)' | sed 's/mount="[^"]*",//; s/ 1[0-9]\{9\}[.0-9]*$/ TIME/'; }
unit remote add --system nas "$PWD/repository" --password-file "$PWD/password" > /dev/null
try metrics unit -C r
unit -C r push nas > /dev/null
try metrics unit -C r
mv repository away
try unit -C r push nas
try metrics unit -C r
unit -C r status 2>&1 | grep 'push to'
mv away repository
unit -C r push nas
try metrics unit -C r
unit -C r status 2>&1 | grep 'push to'
unit umount r > /dev/null 2>&1; unit mount r > /dev/null 2>&1
try metrics unit -C r
unit umount r > /dev/null 2>&1
"#;
    let said = r#"
+ metrics unit -C r
+ metrics unit -C r
ckptfs_last_push_time_seconds{remote="nas"} TIME
ckptfs_push_failures_total{remote="nas"} 0
+ unit -C r push nas
Error: ...
...
status 1
+ metrics unit -C r
ckptfs_last_push_time_seconds{remote="nas"} TIME
ckptfs_push_failures_total{remote="nas"} 1
Warning: the last push to nas failed: ...; to try again: ckptfs push nas
nas has everything already
+ metrics unit -C r
ckptfs_last_push_time_seconds{remote="nas"} TIME
ckptfs_push_failures_total{remote="nas"} 1
+ metrics unit -C r
ckptfs_last_push_time_seconds{remote="nas"} TIME
ckptfs_push_failures_total{remote="nas"} 0
"#;
    says(&Sandbox::new(), script, said);
}
