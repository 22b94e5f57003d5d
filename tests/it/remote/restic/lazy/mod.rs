//! Trees whose content is fetched from a remote on open.

mod content_cache;
mod outage;
mod reader;
mod tree_operations;
mod user;

use serde_json::Value;

use super::User;
use crate::common::{Mount, MountOpts, Rig, Variant};

/// A tree mounted from a user's remote, next to the pushed tree.
pub(super) struct RemoteMount {
    pub mount: Mount,
}

impl RemoteMount {
    /// Mounts with further arguments of `ckptfs mount`.
    pub fn mount(v: Variant, user: &User, rig: &Rig, arguments: &[&str]) -> RemoteMount {
        RemoteMount::mount_with(RemoteMount::opts(v, user), rig, arguments)
    }

    /// Like [`RemoteMount::mount`], with a server timeout of two seconds instead of ten.
    pub fn impatient(v: Variant, user: &User, rig: &Rig, arguments: &[&str]) -> RemoteMount {
        RemoteMount::mount_with(
            RemoteMount::opts(v, user).leaving_out("patience"),
            rig,
            arguments,
        )
    }

    fn mount_with(opts: MountOpts, rig: &Rig, arguments: &[&str]) -> RemoteMount {
        let dir = rig.image.dir("lazy");
        let opts = arguments.iter().fold(opts, |opts, one| opts.arg(one));
        let mut mount = Mount::start(&dir, &opts.clone().arg("--from").arg("home"));
        mount.opts = opts;
        RemoteMount { mount }
    }

    fn opts(v: Variant, user: &User) -> MountOpts {
        let mut opts = MountOpts::new(v.io);
        let config = user.dir.path().join("config");
        let cache = user.dir.path().join("cache");
        opts.branch = false;
        let env = [
            ("XDG_CONFIG_HOME", config.to_str().expect("UTF-8")),
            ("XDG_CACHE_HOME", cache.to_str().expect("UTF-8")),
            ("CKPTFS_REMOTE_PASSWORD", super::PASSWORD),
            ("NO_PROXY", "127.0.0.1"),
        ];
        for (name, value) in env.into_iter().chain(super::BUCKET_USER) {
            opts.env.push((name.to_owned(), value.to_owned()));
        }
        opts
    }

    /// Returns the remote in the output of `status`.
    fn origin(&self) -> Value {
        self.mount.status_json()["origin"].clone()
    }

    fn files_here(&self) -> u64 {
        self.origin()["files_here"].as_u64().expect("a number")
    }

    pub fn warnings(&self) -> String {
        self.mount.status_json()["warnings"].to_string()
    }

    /// Waits until every file is local.
    fn wait_all(&self) {
        crate::common::wait_until("all content is local", || {
            let origin = self.origin();
            origin["files_here"] == origin["files"]
        });
    }
}
