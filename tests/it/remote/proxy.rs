//! A proxy between client and server that counts bytes and, at a given count, cuts the connection
//! or kills a process.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// A proxy. Its thread ends when it is dropped.
pub struct Proxy {
    pub port: u16,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
}

/// Bytes forwarded on all connections.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedBytes {
    /// From the clients.
    pub sent: u64,
    /// From the server.
    pub received: u64,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

/// Called with the counts before each chunk is forwarded; `false` cuts the connection.
pub type ChunkFilter = dyn Fn(ForwardedBytes) -> bool + Send + Sync;

impl Proxy {
    /// Starts a proxy between clients and `port`.
    pub fn start(
        port: u16,
        judge: impl Fn(ForwardedBytes) -> bool + Send + Sync + 'static,
    ) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        // A client counts buffered bytes as sent: limits them to little more than was forwarded.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 64 << 10).expect("set");
        let own = listener.local_addr().expect("its address").port();
        let (counts, stop) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let (judge, counted, stopped): (Arc<ChunkFilter>, _, _) =
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

    pub fn passed(&self) -> ForwardedBytes {
        self.counts.now()
    }
}

impl Counts {
    fn now(&self) -> ForwardedBytes {
        ForwardedBytes {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn between(client: &TcpStream, port: u16, judge: &ChunkFilter, counts: &Counts) {
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
