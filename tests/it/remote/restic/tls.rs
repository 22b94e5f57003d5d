//! Servers whose certificates are known, and those whose are not.

use std::path::{Path, PathBuf};

use super::kinds::{Kind, Server};
use super::{SECONDS, User, pulled};
use crate::common::command::{fails, sh, succeeds};
use crate::common::tree::{assert_same, tree};
use crate::common::{Variant, for_each_variant, scratch};

/// An authority, `ca.pem`, and a certificate of it with its key, for these names.
pub fn certificate(dir: &Path, names: &str) -> (PathBuf, PathBuf) {
    let script = format!(
        "new() {{ openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout $1.key \"${{@:2}}\" 2>&1; }}
         new ca -x509 -subj /CN=ca-of-the-test -days 2 -out ca.pem
         new server -subj /CN=server -addext 'subjectAltName={names}' -out server.csr
         openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -out server.pem 2>&1"
    );
    sh(dir, &script);
    (dir.join("server.pem"), dir.join("server.key"))
}

for_each_variant! { xfs => a_certificate_that_is_known_and_one_that_is_not }

fn a_certificate_that_is_known_and_one_that_is_not(v: Variant) {
    let rig = v.start();
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let dir = scratch();
    let (certificate, key) = certificate(dir.path(), "IP:127.0.0.1");
    let authority = dir.path().join("ca.pem").display().to_string();
    for kind in [Kind::S3, Kind::Rest] {
        let Some(server) = Server::with(kind, Some((&certificate, &key))) else {
            return;
        };
        let url = server.url_at(server.port);
        assert!(url.contains(":https://"), "{url}");
        let mut user = User::new();
        user.variables = server.variables(server.port);
        let add = ["remote", "add", "home", &url, "--force"];
        let said = fails(&mut user.command(rig.path(), &add), 60);
        eprintln!("{kind:?}: {said}");
        assert!(
            said.contains("the server's certificate is not to be trusted"),
            "{said}"
        );
        assert!(said.contains("SSL_CERT_FILE"), "{said}");
        // Of an authority that is known the certificate must be for this address.
        let to_name = url.replace("127.0.0.1", "localhost");
        let add_name = ["remote", "add", "home", &to_name, "--force"];
        let known = ("SSL_CERT_FILE".to_owned(), authority.clone());
        user.variables.push(known);
        let mut by_name = user.command(rig.path(), &add_name);
        let said = fails(by_name.env("NO_PROXY", "localhost"), 60);
        assert!(said.contains("certificate is not to be trusted"), "{said}");
        succeeds(&mut user.command(rig.path(), &add), SECONDS);
        assert_eq!(user.push(&rig, &[]).len(), 1);
        assert_eq!(user.log(&rig), [1]);
        let into = dir.path().join(format!("{kind:?}"));
        user.pull(&rig, "1", &into);
        assert_same(&pulled(&into), &expected);
    }
}
