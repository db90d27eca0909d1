//! A real browser: what a script in it learns of a socket that is closed.

use std::process::Stdio;

use axum::{Router, extract::Query, response::Html, routing::get};
use tokio::{
    process::{Child, Command},
    sync::mpsc,
};

use super::*;

const PAGE: &str = r#"<!doctype html><script>
  const socket = new WebSocket(`ws://${location.host}/socket`, ["chat", "other"]);
  socket.onclose = event => fetch(`/closed?code=${event.code}&reason=${encodeURIComponent(event.reason)}`);
</script>"#;

/// Chromium, without a window; `None` where there is none.
fn open(url: &str, profile: &std::path::Path) -> Option<Child> {
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    browsers.into_iter().find_map(|browser| {
        Command::new(browser)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(url)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .ok()
    })
}

#[derive(Debug, serde::Deserialize)]
struct Closed {
    code: u16,
    reason: String,
}

#[tokio::test]
async fn a_script_in_a_browser_sees_1013_and_the_hint() {
    let (closed, mut seen) = mpsc::unbounded_channel();
    let app = Router::new()
        .route("/", get(|| async { Html(PAGE) }))
        .route(
            "/closed",
            get(move |Query(event): Query<Closed>| async move { drop(closed.send(event)) }),
        )
        // A browser takes its time to start.
        .route_service("/socket", refusing!(layer(), Duration::from_secs(3600)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });

    let profile = std::env::temp_dir().join(format!("tower-backpressure-{}", std::process::id()));
    let Some(mut browser) = open(&url, &profile) else {
        println!("SKIPPED: there is no chromium here (Debian: apt-get install chromium)");
        return;
    };
    let event = tokio::select! {
        event = seen.recv() => event.unwrap(),
        status = browser.wait() => panic!("the browser ended without a word: {status:?}"),
    };
    drop(browser);
    let _ = std::fs::remove_dir_all(profile);
    assert_eq!(event.code, 1013);
    let hint = event.reason.strip_prefix("overloaded; retry-after=");
    let seconds: u64 = hint.expect("a hint").parse().expect("in seconds");
    assert!((3000..=3600).contains(&seconds), "{seconds}");
}
