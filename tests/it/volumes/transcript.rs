//! The requests of real engines, byte by byte (docker.io 20.10.24, Docker 26.1.5, podman 4.3.1 and
//! 5.4.2), and the replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

use crate::volumes::support::{Rig, SECONDS, unavailable};

/// A persistent connection, like an engine's.
struct Engine {
    stream: BufReader<UnixStream>,
    headers: &'static str,
    newline: &'static str,
    empty_list: bool,
}

impl Engine {
    fn connect(
        rig: &Rig,
        headers: &'static str,
        newline: &'static str,
        empty_list: bool,
    ) -> Engine {
        let stream = UnixStream::connect(&rig.socket).expect("the driver listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(SECONDS)))
            .expect("a timeout");
        Engine {
            stream: BufReader::new(stream),
            headers,
            newline,
            empty_list,
        }
    }

    /// Performs a call. Returns the status line and the body, after checking the content type.
    fn call(&mut self, name: &str, body: &str) -> (String, String) {
        let body = match (name, body) {
            ("Plugin.Activate", _) => String::new(),
            ("VolumeDriver.List", _) if self.empty_list => String::new(),
            (_, body) => format!("{body}{}", self.newline),
        };
        let request = format!(
            "POST /{name} HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{body}",
            self.headers,
            body.len()
        );
        self.stream
            .get_mut()
            .write_all(request.as_bytes())
            .expect("the driver reads");
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            self.stream
                .read_line(&mut line)
                .expect("the driver answers");
            assert!(line.ends_with("\r\n"), "{line:?}");
            if line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_owned());
        }
        let length = head
            .iter()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .expect("a length")
            .parse()
            .expect("a number");
        assert!(
            head.contains(&"Content-Type: application/vnd.docker.plugins.v1.1+json".to_owned()),
            "{head:?}"
        );
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("the whole body");
        (head[0].clone(), String::from_utf8(body).expect("text"))
    }
}

/// The life of a volume.
fn life(rig: &Rig, engine: &mut Engine, no_options: &str) {
    let id = "8e3f".repeat(16);
    let point = rig.point("vol1").display().to_string();
    let ok = "HTTP/1.1 200 OK";
    let named = "{\"Name\":\"vol1\"}";
    introduction(engine);
    let (status, body) = engine.call("VolumeDriver.Get", named);
    assert!(
        status == "HTTP/1.1 500 Internal Server Error"
            && body.starts_with("{\"Err\":\"no such volume: vol1"),
        "{status} {body}"
    );
    assert_eq!(
        engine.call("VolumeDriver.List", "{}"),
        (ok.into(), "{\"Err\":\"\",\"Volumes\":[]}\n".into())
    );
    assert_eq!(
        engine.call("VolumeDriver.Create", no_options),
        (ok.into(), "{\"Err\":\"\"}\n".into())
    );
    let (status, body) = engine.call("VolumeDriver.Get", named);
    let told: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (
            status.as_str(),
            told["Volume"]["Name"].as_str(),
            told["Volume"]["Mountpoint"].as_str()
        ),
        (ok, Some("vol1"), Some(""))
    );
    let created = created(&told);
    let mount = format!("{{\"Name\":\"vol1\",\"ID\":\"{id}\"}}");
    assert_eq!(
        engine.call("VolumeDriver.Mount", &mount),
        (
            ok.into(),
            format!("{{\"Err\":\"\",\"Mountpoint\":\"{point}\"}}\n")
        )
    );
    assert_eq!(
        engine.call("VolumeDriver.Path", named),
        (
            ok.into(),
            format!("{{\"Err\":\"\",\"Mountpoint\":\"{point}\"}}\n")
        )
    );
    std::fs::write(rig.point("vol1").join("f"), "x").expect("it is mounted");
    let (_, body) = engine.call("VolumeDriver.List", "{}");
    assert_eq!(
        body,
        format!(
            "{{\"Err\":\"\",\"Volumes\":[{{\"CreatedAt\":\"{created}\",\"Mountpoint\":\"{point}\",\"Name\":\"vol1\"}}]}}\n"
        )
    );
    assert_eq!(
        engine.call("VolumeDriver.Unmount", &mount),
        (ok.into(), "{\"Err\":\"\"}\n".into())
    );
    end(rig, engine, named);
}

/// The end of a volume, and invalid calls.
fn end(rig: &Rig, engine: &mut Engine, named: &str) {
    let ok = "HTTP/1.1 200 OK";
    assert!(!rig.is_mounted("vol1"));
    assert_eq!(
        engine.call("VolumeDriver.Path", named).1,
        "{\"Err\":\"\",\"Mountpoint\":\"\"}\n"
    );
    assert_eq!(
        engine.call("VolumeDriver.Remove", named),
        (ok.into(), "{\"Err\":\"\"}\n".into())
    );
    assert_eq!(
        engine.call("VolumeDriver.Remove", named).0,
        "HTTP/1.1 500 Internal Server Error"
    );
    assert_eq!(
        engine.call("VolumeDriver.Fly", named).0,
        "HTTP/1.1 404 Not Found"
    );
    assert_eq!(
        engine.call("VolumeDriver.Get", "{\"Name\":").0,
        "HTTP/1.1 500 Internal Server Error"
    );
}

/// Returns the creation time, after checking that it is in RFC 3339 format.
fn created(told: &Value) -> String {
    let created = told["Volume"]["CreatedAt"]
        .as_str()
        .expect("docker drops a volume whose time it cannot read");
    assert!(
        created.len() == 20 && created.ends_with('Z') && created.as_bytes()[10] == b'T',
        "RFC 3339: {created}"
    );
    created.to_owned()
}

/// The first calls of an engine.
fn introduction(engine: &mut Engine) {
    let ok = "HTTP/1.1 200 OK";
    assert_eq!(
        engine.call("Plugin.Activate", ""),
        (ok.into(), "{\"Implements\":[\"VolumeDriver\"]}\n".into())
    );
    assert_eq!(
        engine.call("VolumeDriver.Capabilities", "{}"),
        (
            ok.into(),
            "{\"Capabilities\":{\"Scope\":\"local\"}}\n".into()
        )
    );
}

#[test]
fn docker_s_calls_are_answered_as_docker_expects() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let old = "Host: \r\nUser-Agent: Go-http-client/1.1\r\nAccept: application/vnd.docker.plugins.v1.2+json\r\n";
    // From `run -v new:/d --volume-driver ckptfs`.
    life(
        &rig,
        &mut Engine::connect(&rig, old, "\n", false),
        "{\"Name\":\"vol1\",\"Opts\":null}",
    );
    let new = "Host: plugin.moby.localhost\r\nUser-Agent: Go-http-client/1.1\r\nAccept: application/vnd.docker.plugins.v1.2+json\r\n";
    life(
        &rig,
        &mut Engine::connect(&rig, new, "\n", false),
        "{\"Name\":\"vol1\",\"Opts\":{}}",
    );
}

#[test]
fn podman_s_calls_are_answered_as_podman_expects() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let headers = "Host: plugin\r\nContent-Type: application/vnd.docker.plugins.v1.1+json\r\n";
    life(
        &rig,
        &mut Engine::connect(&rig, headers, "", true),
        "{\"Name\":\"vol1\"}",
    );
}
