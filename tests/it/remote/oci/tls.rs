//! A registry with TLS. Loopback addresses are reached without TLS, so this one is reached by the
//! machine's host name.

use std::net::{Ipv4Addr, ToSocketAddrs};
use std::process::Command;

use super::super::restic::tls::certificate;
use super::images::assert_is;
use super::server::{Server, ckptfs, missing};
use crate::common::command::{TOOL_SECONDS, stdout_of, succeeds};
use crate::common::tree::tree;
use crate::common::{Variant, fails, for_each_variant, scratch, skip, tool};
use crate::export::support::copy_at;

for_each_variant! { xfs => a_certificate_that_is_known_and_one_that_is_not }

fn a_certificate_that_is_known_and_one_that_is_not(v: Variant) {
    let name = stdout_of(&mut tool("uname", &["-n"]), 60);
    let name = name.trim();
    let is_here = (name, 0)
        .to_socket_addrs()
        .is_ok_and(|mut all| all.all(|address| address.ip() == Ipv4Addr::LOCALHOST));
    if name == "localhost" || !is_here {
        return skip("the name of this machine does not stand for 127.0.0.1 alone");
    }
    if missing() {
        return;
    }
    let rig = v.start();
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let dir = scratch();
    let server = Server::with_tls(dir.path(), certificate(dir.path(), &format!("DNS:{name}")));
    let place = format!("oci://{name}:{}/project", server.port);
    let authority = dir.path().join("ca.pem");
    let ask = |arguments: &[&str]| -> Command {
        let mut command = ckptfs(arguments);
        command.current_dir(rig.path()).env("NO_PROXY", name);
        command
    };
    let into = dir.path().join("into");
    let pull = ["pull", &place, "--into", into.to_str().expect("UTF-8")];
    for verb in [&["push", &place, "1"][..], &pull] {
        let said = fails(&mut ask(verb), TOOL_SECONDS);
        assert!(said.contains("invalid peer certificate"), "{said}");
        assert!(said.contains("SSL_CERT_FILE"), "{said}");
        let mut trusted = ask(verb);
        succeeds(trusted.env("SSL_CERT_FILE", &authority), TOOL_SECONDS);
    }
    assert_is(&copy_at(&into), &expected, true);
}
