//! Stands between a client and a server, counts what passes, and does something when so much has
//! passed: cuts the connection, or kills somebody.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// A proxy. It ends with the process; nobody connects to it later.
pub struct Proxy {
    /// Its port.
    pub port: u16,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
}

/// Bytes that have passed on all connections: those of the clients, and those of the server.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// Of the clients.
    pub sent: u64,
    /// Of the server.
    pub received: u64,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

/// What is done when a piece is on its way: gets what has passed before it; `false`: the connection
/// is cut.
pub type Judge = dyn Fn(Passed) -> bool + Send + Sync;

impl Proxy {
    /// Between clients and `port`.
    pub fn start(port: u16, judge: impl Fn(Passed) -> bool + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        // What it has taken has moved, as far as the client knows: not much more than passes.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 64 << 10).expect("set");
        let own = listener.local_addr().expect("its address").port();
        let (counts, stop) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let (judge, counted, stopped): (Arc<Judge>, _, _) =
            (Arc::new(judge), Arc::clone(&counts), Arc::clone(&stop));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (judge, counts) = (Arc::clone(&judge), Arc::clone(&counted));
                thread::spawn(move || between(&client, port, &*judge, &counts));
            }
        });
        Proxy {
            port: own,
            counts,
            stop,
        }
    }

    /// What has passed.
    pub fn passed(&self) -> Passed {
        self.counts.now()
    }
}

impl Counts {
    fn now(&self) -> Passed {
        Passed {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It waits for somebody to connect.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn between(client: &TcpStream, port: u16, judge: &Judge, counts: &Counts) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
        let _ = client.shutdown(Shutdown::Both);
        return;
    };
    let pass = |mut from: &TcpStream, mut to: &TcpStream, count: &AtomicU64| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let before = counts.now();
            count.fetch_add(read as u64, Ordering::Relaxed);
            if !judge(before) || to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    };
    thread::scope(|scope| {
        scope.spawn(|| pass(&server, client, &counts.received));
        pass(client, &server, &counts.sent);
    });
}
