//! Priorities: how a request gets one, and how it travels from server to server.

use crate::support;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Request, Response};
use support::{finish, poll_ready};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_backpressure::{ConcurrencyLimitLayer, Priority, PriorityLayer, edge, priority::Rules};

const HEADER: HeaderName = HeaderName::from_static("x-priority");

/// The priority that the handler sees.
async fn seen(request: Request<()>) -> Result<Response<Priority>, BoxError> {
    let priority = request.extensions().get::<Priority>();
    Ok(Response::new(*priority.ok_or("no priority")?))
}

fn seen_behind<F>(layer: &PriorityLayer<F>, request: Request<()>) -> Priority
where
    F: Fn(tower_backpressure::priority::Head<'_>) -> Priority,
{
    let service = layer.layer(service_fn(|request| Box::pin(seen(request))));
    finish(service.oneshot(request)).unwrap().into_body()
}

#[test]
fn the_function_decides_and_sees_what_the_request_had() {
    let raised = PriorityLayer::new(|head| match head.extensions.get() {
        Some(Priority::Low) => Priority::High,
        _ => Priority::Background,
    });
    assert_eq!(seen_behind(&raised, Request::new(())), Priority::Background);
    let mut request = Request::new(());
    request.extensions_mut().insert(Priority::Low);
    assert_eq!(seen_behind(&raised, request), Priority::High);
}

#[test]
fn the_layer_is_as_ready_as_its_inner_service() {
    let limit = ConcurrencyLimitLayer::new(1);
    let layer = PriorityLayer::new(|_| Priority::High);
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .layer(limit.clone())
        .service(service_fn(seen));
    let busy = limit.handle().try_acquire().unwrap();
    assert!(poll_ready::<_, Request<()>>(&mut service).is_pending());
    drop(busy);
    assert!(poll_ready::<_, Request<()>>(&mut service).is_ready());
    let response = finish(Box::pin(service.call(Request::new(()))));
    assert_eq!(*response.unwrap().body(), Priority::High);
}

/// A `PriorityLayer` tells the queue of an edge.
#[tokio::test(start_paused = true)]
async fn the_more_important_go_first_where_they_wait() {
    let served = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&served);
    let rules = Rules::new().dangerously_trust_header(HEADER);
    let service = ServiceBuilder::new()
        .layer(PriorityLayer::new(move |head| rules.of(head)))
        .layer(edge().limits(1, 1, 1))
        .service(service_fn(move |request: Request<String>| {
            seen.lock()
                .unwrap()
                .push(*request.extensions().get::<Priority>().unwrap());
            async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<_, BoxError>(Response::new(String::new()))
            }
        }));
    let order = [
        Priority::Low,
        Priority::Background,
        Priority::High,
        Priority::Normal,
        Priority::Critical,
    ];
    let mut requests = tokio::task::JoinSet::new();
    for priority in order {
        let request = Request::get("/").header(HEADER, HeaderValue::from(priority));
        requests.spawn(
            service
                .clone()
                .oneshot(request.body(String::new()).unwrap()),
        );
        tokio::task::yield_now().await;
    }
    for response in requests.join_all().await {
        assert_eq!(response.unwrap().status(), 200);
    }
    // The first was served before there was anything to decide.
    let by_importance = [
        Priority::Low,
        Priority::Critical,
        Priority::High,
        Priority::Normal,
        Priority::Background,
    ];
    assert_eq!(*served.lock().unwrap(), by_importance);
}

/// From a gateway that knows, through a header, to a server that trusts it.
#[test]
fn a_priority_is_the_same_on_the_next_server() {
    let by_name = Rules::new().dangerously_trust_header(HEADER);
    let by_name = PriorityLayer::new(move |head| by_name.of(head));
    let by_urgency = Rules::new().dangerously_trust_urgency();
    let by_urgency = PriorityLayer::new(move |head| by_urgency.of(head));
    let strangers = Rules::new();
    let strangers = PriorityLayer::new(move |head| strangers.of(head));
    for priority in Priority::ALL {
        let mut named = Request::new(());
        named
            .headers_mut()
            .insert(HEADER, HeaderValue::from(priority));
        assert_eq!(seen_behind(&by_name, named.clone()), priority);
        assert_eq!(seen_behind(&strangers, named), Priority::Normal);

        let urgent = || {
            Request::get("/")
                .header("priority", priority.urgency())
                .body(())
                .unwrap()
        };
        assert_eq!(seen_behind(&by_urgency, urgent()), priority);
        assert_eq!(seen_behind(&strangers, urgent()), Priority::Normal);
    }
}
