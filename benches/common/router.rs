//! Routers to be compared: bare, with tower's layers, with all of ours.
#![allow(dead_code, reason = "each bench uses a part of it")]

use axum::{
    BoxError, Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{Request, StatusCode},
    routing::any,
};
use tokio::runtime::Runtime;
use tower::{Service, ServiceBuilder};

/// A router with a handler that does nothing, and a runtime to drive it.
pub struct Driven {
    runtime: Runtime,
    app: Router,
}

impl Driven {
    fn new(layers: impl FnOnce(Router) -> Router) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().expect("a runtime");
        let entered = runtime.enter();
        let routes = Router::new().route("/", any(|| async {}));
        // As axum's own server does it, so that layers are not applied anew for each request.
        let app = layers(routes).with_state(());
        drop(entered);
        Self { runtime, app }
    }

    pub fn bare() -> Self {
        Self::new(|app| app)
    }

    /// tower's shed and limit, and the layer that axum asks for to answer their errors.
    pub fn tower() -> Self {
        Self::new(|app| {
            let answer = |_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE };
            app.layer(
                ServiceBuilder::new()
                    .layer(HandleErrorLayer::new(answer))
                    .layer(tower::load_shed::LoadShedLayer::new())
                    .layer(tower::limit::GlobalConcurrencyLimitLayer::new(20)),
            )
        })
    }

    /// The same of ours, with answers.
    pub fn shed_and_limit() -> Self {
        use tower_backpressure::{ConcurrencyLimitLayer, LoadShedLayer, OverloadResponseLayer};
        Self::new(|app| {
            app.layer(
                ServiceBuilder::new()
                    .layer(OverloadResponseLayer::new())
                    .layer(LoadShedLayer::new())
                    .layer(ConcurrencyLimitLayer::new(20)),
            )
        })
    }

    /// Answers, fair queueing, admission by age, and an adaptive limit.
    pub fn ours() -> Self {
        Self::new(|app| app.layer(tower_backpressure::edge()))
    }

    /// One request through a clone, as a server makes it.
    pub fn request(&self) -> bool {
        self.serve(Request::get("/").body(Body::empty()).expect("valid"))
    }

    /// The same, with a body.
    pub fn post(&self) -> bool {
        self.serve(Request::post("/").body(Body::from("body")).expect("valid"))
    }

    #[inline(always)]
    fn serve(&self, request: Request<Body>) -> bool {
        self.runtime.block_on(async {
            let response = self.app.clone().call(request).await;
            response.expect("infallible").status() == StatusCode::OK
        })
    }
}
