//! A `redis-server` of the test's own, on a free port of the loopback.

use std::{
    env,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Set where a missing `redis-server` is a failure, as in CI.
const REQUIRED: &str = "BACKPRESSURE_REDIS_REQUIRED";

pub(crate) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// `None` if there is no such program on this machine, which the test then says.
    pub(crate) fn start() -> Option<Self> {
        // The port may be taken by somebody else before the server takes it.
        for _ in 0..5 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("it is bound").port();
            drop(listener);
            let Some(child) = spawn(port) else {
                assert!(
                    env::var_os(REQUIRED).is_none(),
                    "there is no redis-server, and {REQUIRED} is set"
                );
                eprintln!(
                    "SKIPPED: there is no redis-server on the PATH (apt-get install redis-server)"
                );
                return None;
            };
            let server = Self { child, port };
            if server.is_up() {
                return Some(server);
            }
        }
        panic!("redis-server does not come up");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn is_up(&self) -> bool {
        (0..200).any(|_| {
            thread::sleep(Duration::from_millis(10));
            self.try_command(&["PING"])
                .is_some_and(|answer| answer.starts_with("+PONG"))
        })
    }

    /// A command, and the answer as it is on the wire.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        self.try_command(words).expect("it answers")
    }

    fn try_command(&self, words: &[&str]) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .ok()?;
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = vec![0; 64 * 1024];
        let length = stream.read(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    /// SIGSTOP, or SIGCONT.
    pub(crate) fn signal(&self, signal: &str) {
        signal_to(self.child.id(), signal);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    /// Another one on the same port.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port).expect("it was there");
        assert!(self.is_up());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16) -> Option<Child> {
    let port = port.to_string();
    let mut server = Command::new("redis-server");
    server.args([
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    server
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir(env::temp_dir());
    server.spawn().ok()
}

pub(crate) fn signal_to(process: u32, signal: &str) {
    let status = Command::new("kill")
        .args([format!("-{signal}"), process.to_string()])
        .status();
    assert!(status.expect("there is a kill").success());
}
