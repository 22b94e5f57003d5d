//! Stands between a client and a registry, counts what the client sends, and does something when so
//! much has passed: cuts the connection, or kills somebody.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// A proxy. It ends with the process; nobody connects to it later.
pub struct Proxy {
    /// Its port.
    pub port: u16,
    stop: Arc<AtomicBool>,
}

/// What is done when a piece is on its way: gets what was sent before it; `false`: the connection
/// is cut.
pub type Judge = dyn Fn(u64) -> bool + Send + Sync;

impl Proxy {
    /// Between clients and `port`.
    pub fn start(port: u16, judge: impl Fn(u64) -> bool + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let own = listener.local_addr().expect("its address").port();
        let (sent, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (judge, counted, stopped): (Arc<Judge>, _, _) =
            (Arc::new(judge), Arc::clone(&sent), Arc::clone(&stop));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (judge, sent) = (Arc::clone(&judge), Arc::clone(&counted));
                thread::spawn(move || between(&client, port, &*judge, &sent));
            }
        });
        Proxy { port: own, stop }
    }

    /// A place behind it.
    pub fn place(&self, rest: &str) -> String {
        format!("oci://127.0.0.1:{}/{rest}", self.port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It waits for somebody to connect.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn between(client: &TcpStream, port: u16, judge: &Judge, sent: &AtomicU64) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
        let _ = client.shutdown(Shutdown::Both);
        return;
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to) = (&server, client);
            let _ = std::io::copy(&mut from, &mut to);
            let _ = client.shutdown(Shutdown::Both);
        });
        let mut buffer = vec![0; 64 << 10];
        let (mut from, mut to) = (client, &server);
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let before = sent.fetch_add(read as u64, Ordering::Relaxed);
            if !judge(before) || to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
}
