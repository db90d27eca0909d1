//! A browser to look at pages with: Chromium, without a window, over its DevTools protocol.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

/// A page in a browser of its own.
pub struct Page {
    browser: Child,
    profile: PathBuf,
    socket: WebSocketStream<TcpStream>,
    session: Option<String>,
    commands: u64,
    errors: Vec<String>,
}

/// Opens a page; `None`, with a word about it, where there is no Chromium.
pub async fn open(url: &str) -> Option<Page> {
    static PROFILES: AtomicU32 = AtomicU32::new(0);
    let (process, n) = (std::process::id(), PROFILES.fetch_add(1, Relaxed));
    let profile = std::env::temp_dir().join(format!("tower-backpressure-{process}-page-{n}"));
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let started = browsers.into_iter().find_map(|browser| {
        Command::new(browser)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args(["--no-first-run", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .ok()
    });
    let Some(mut browser) = started else {
        println!("SKIPPED: there is no chromium here (Debian: apt-get install chromium)");
        return None;
    };

    let mut lines = BufReader::new(browser.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap();
        let line = line.expect("the browser ended without a word");
        if let Some((_, address)) = line.split_once("DevTools listening on ws://") {
            break address.trim().to_owned();
        }
    };
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let stream = TcpStream::connect(address.split('/').next().unwrap()).await;
    let (socket, _) = client_async(format!("ws://{address}"), stream.unwrap())
        .await
        .unwrap();
    let mut page = Page {
        browser,
        profile,
        socket,
        session: None,
        commands: 0,
        errors: Vec::new(),
    };
    let target = json!({ "url": "about:blank" });
    let target = page.command("Target.createTarget", target).await;
    let attach = json!({ "targetId": target["targetId"], "flatten": true });
    let attached = page.command("Target.attachToTarget", attach).await;
    page.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
    page.command("Runtime.enable", json!({})).await;
    page.command("Log.enable", json!({})).await;
    page.command("Page.navigate", json!({ "url": url })).await;
    Some(page)
}

impl Page {
    /// What an expression of the page's language comes to; of a promise, what it resolves to.
    pub async fn eval(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.command("Runtime.evaluate", parameters).await;
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true; fails if it has not become so after a minute of looks.
    pub async fn until(&mut self, condition: &str) {
        let mut last = Value::Null;
        for _ in 0..2400 {
            // Between looks the page goes on: its next timer is later than what it has to do now.
            last = self
                .eval(&format!(
                    "new Promise(look => setTimeout(() => look({condition}), 25))"
                ))
                .await;
            if last == true {
                return;
            }
        }
        panic!("never: {condition} (last: {last}; {:?})", self.errors);
    }

    /// What went wrong in the page so far: exceptions, what was not found, and what it says itself.
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// A command of the protocol, and its result.
    pub async fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.commands += 1;
        let mut command = json!({ "id": self.commands, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let text = Message::text(command.to_string());
        self.socket.send(text).await.unwrap();
        loop {
            let message = self.socket.next().await.expect("the browser is gone");
            let Message::Text(text) = message.unwrap() else {
                continue;
            };
            let mut message: Value = serde_json::from_str(&text).unwrap();
            if message["id"] == self.commands {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            let event = &message["params"];
            let failed = match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Log.entryAdded") => event["entry"]["level"] == "error",
                Some("Runtime.consoleAPICalled") => {
                    event["type"] == "error" || event["type"] == "assert"
                }
                _ => false,
            };
            if failed {
                self.errors.push(event.to_string());
            }
        }
    }

    /// Ends the browser, and leaves nothing behind.
    pub async fn close(mut self) {
        self.session = None;
        self.command("Browser.close", json!({})).await;
        let _ = self.browser.wait().await;
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
