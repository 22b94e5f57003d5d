//! Checkpoints are pushed automatically.

use std::process::Stdio;
use std::time::Duration;

use super::{BUCKET_USER, PASSWORD, User};
use crate::common::command::wait_limited;
use crate::common::wait::{WAIT, same, seen, wait_until};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree};

for_each_variant! { xfs => each_is_pushed_until_the_end }

/// Pushed by `push --auto`, and by the daemon of a mount. An unmount does not wait for the push.
fn each_is_pushed_until_the_end(v: Variant) {
    let user = User::new();
    let mut rig = v.start_with(MountOpts::new(v.io), sample_tree);
    rig.mount.checkpoint();
    let mut follows = user
        .command(rig.path(), &["push", "home", "--auto"])
        .stdout(Stdio::null())
        .spawn()
        .expect("runs");
    wait_until("the first snapshot exists", || same(user.log(&rig), [1]));
    rig.mount.ok(&["checkpoint", "-m", "two"]);
    rig.mount.ok(&["checkpoint", "-m", "three"]);
    wait_until("all snapshots exist", || same(user.log(&rig), [3, 2, 1]));
    rig.mount.umount();
    let ended = wait_limited(&mut follows, WAIT);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");

    let config = user.dir.path().join("config").display().to_string();
    let mut opts = MountOpts::new(v.io);
    opts.extra = vec!["--push".to_owned(), "home/100ms".to_owned()];
    opts.env.extend(
        [
            ("XDG_CONFIG_HOME", config.as_str()),
            ("CKPTFS_REMOTE_PASSWORD", PASSWORD),
        ]
        .into_iter()
        .chain(BUCKET_USER)
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let mut mount = crate::common::Mount::start(rig.path(), &opts);
    mount.ok(&["checkpoint", "-m", "four"]);
    wait_until("the daemon pushes", || {
        let log = user.log(&rig);
        seen(log.first() == Some(&4), log)
    });
    mount.replace_worker();
    mount.ok(&["checkpoint", "-m", "five"]);
    wait_until("the next daemon pushes", || {
        let log = user.log(&rig);
        seen(log.first() == Some(&5), log)
    });
    crate::common::command::sh(mount.path(), "head -c 30000000 /dev/urandom > large");
    mount.checkpoint();
    // The push is running or about to start.
    std::thread::sleep(Duration::from_millis(2_500));
    mount.umount();
    assert_eq!(
        user.json(user.dir.path(), &["remote", "log", "home", "--all"])
            .as_array()
            .map(|all| all.len() >= 5),
        Some(true)
    );
}
