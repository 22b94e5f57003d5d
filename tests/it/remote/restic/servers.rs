//! Repositories behind a server.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{SECONDS, User, mark, pulled};
use crate::common::command::{fails, sh, succeeds};
use crate::common::mount::wait_until;
use crate::common::tree::{assert_same, tree};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree, skip, tool};

/// A server that speaks S3 and keeps everything in memory (the Python package moto).
pub struct Moto {
    server: Child,
    pub port: u16,
}

impl Moto {
    /// `None`: it is not installed.
    pub fn start() -> Option<Moto> {
        let program =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/moto_server");
        if !program.exists() {
            return None;
        }
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("its number").port();
        drop(free);
        let server = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let moto = Moto { server, port };
        wait_until("the server answers", 60, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        let bucket = format!("http://127.0.0.1:{port}/bucket");
        succeeds(
            &mut tool("curl", &["-sS", "--noproxy", "*", "-X", "PUT", &bucket]),
            60,
        );
        Some(moto)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

for_each_variant! { one => a_bucket }

fn a_bucket(v: Variant) {
    let Some(server) = Moto::start() else {
        return skip(
            "there is no server: tests/tools.sh could not install the Python package moto",
        );
    };
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sample_tree(dir);
        sh(dir, "head -c 3000000 /dev/urandom > random");
    });
    let user = User::in_bucket(server.port);
    let mut trees = Vec::new();
    for change in [
        "true",
        "echo more >> plain.txt; rm -r links",
        "mv random other; echo 1 > new",
    ] {
        sh(rig.path(), change);
        rig.mount.checkpoint();
        trees.push(tree(rig.path()));
    }
    let sent = user.push(&rig, &[]);
    assert_eq!(sent.len(), 3);
    assert!(
        sent[1]["bytes_sent"].as_u64() < Some(200_000),
        "{}",
        sent[1]
    );
    assert_eq!(user.log(&rig), [3, 2, 1]);
    let into = rig.path().parent().expect("the image").join("into");
    for (id, expected) in ["1", "2", "3"].into_iter().zip(&trees) {
        user.pull(&rig, id, &into);
        assert_same(&pulled(&into), expected);
    }
    // The server is gone: it is said, and soon; nothing that is here is touched.
    drop(server);
    fs::write(rig.path().join("later"), "").expect("written");
    rig.mount.checkpoint();
    for verb in [
        &["push", "home"][..],
        &["remote", "log", "home"],
        &["pull", "home", "--into", "../other"],
    ] {
        let said = fails(&mut user.command(rig.path(), verb), SECONDS);
        assert!(said.contains("Hint: run the same command again"), "{said}");
        assert!(!said.contains("key-of-the-test"), "{said}");
    }
    assert_eq!(mark(&into), "whole");
    assert_same(&pulled(&into), &trees[2]);
}
