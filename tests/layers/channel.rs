//! The bounded channel: what each kind of sender does when it is full, and what is known of it.

use crate::support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use support::{boxed, poll};
use tokio::time::advance;
use tower_backpressure::{
    Overloaded, Reason,
    channel::{Closed, TryRecvError, Unsent, bounded},
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn completion_channel_blocks_never_drops() {
    let (results, mut orchestration) = bounded(2);
    let handle = results.handle();
    let mut workers = Vec::new();
    for step in 0..10 {
        let results = results.clone();
        workers.push(boxed(async move { results.send(step).await }));
    }
    workers.retain_mut(|worker| poll(worker).is_pending());
    assert_eq!((handle.snapshot().depth, handle.snapshot().waiting), (2, 8));

    // However long it takes.
    advance(100_000 * SEC).await;
    workers.retain_mut(|worker| poll(worker).is_pending());
    assert_eq!(workers.len(), 8);
    for step in 0..10 {
        assert_eq!(
            orchestration.recv().await,
            Some(step),
            "in the order of their coming"
        );
        workers.retain_mut(|worker| poll(worker).is_pending());
        assert_eq!(workers.len(), 7_usize.saturating_sub(step));
    }
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.sent, snapshot.received), (10, 10));
    assert_eq!(
        (snapshot.dropped, snapshot.timed_out, snapshot.waiting),
        (0, 0, 0)
    );
}

/// Only a receiver that is gone is an error, and the result is not lost even then.
#[tokio::test]
async fn a_completion_comes_back_if_nobody_can_receive_it() {
    let (results, orchestration) = bounded(1);
    results.send("first").await.unwrap();
    let mut waiting = Box::pin(results.send("second"));
    assert!(poll(&mut waiting).is_pending());
    drop(orchestration);
    assert!(matches!(
        poll(&mut waiting),
        Poll::Ready(Err(Closed("second")))
    ));
    assert_eq!(results.send("third").await, Err(Closed("third")));
    drop(waiting);
    let snapshot = results.handle().snapshot();
    assert_eq!(
        (snapshot.sent, snapshot.discarded, snapshot.depth),
        (1, 1, 0)
    );
    assert_eq!((snapshot.waiting, snapshot.oldest_age), (0, None));
    assert!(snapshot.closed);
}

/// What does the work must not notice that nobody listens to what is said about it.
#[tokio::test(start_paused = true)]
async fn domain_events_drop_with_metric_and_the_step_is_not_affected() {
    let (events, mut listener) = bounded(3);
    let events = events.lossy();
    let handle = events.handle();
    let (results, mut orchestration) = bounded(100);
    let started = support::now();
    for step in 0..10 {
        assert_eq!(events.offer(step), step < 3);
        results.send(step).await.unwrap();
    }
    assert_eq!(support::now(), started, "nothing has waited");
    for step in 0..10 {
        assert_eq!(orchestration.recv().await, Some(step));
    }
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.sent, snapshot.dropped, snapshot.depth), (3, 7, 3));

    assert_eq!(listener.try_recv(), Ok(0));
    assert!(events.offer(10), "there is room again");
    drop(listener);
    assert!(!events.clone().offer(11), "nobody listens");
    assert_eq!(handle.snapshot().dropped, 8);
}

#[tokio::test(start_paused = true)]
async fn block_with_timeout_then_reject() {
    let (commands, mut processor) = bounded(1);
    let commands = commands.name("commands");
    commands.send("first").await.unwrap();

    let started = support::now();
    let unsent = commands.send_within("second", 3 * SEC).await.unwrap_err();
    assert_eq!(support::now() - started, 3 * SEC);
    let overloaded = unsent.overloaded().unwrap().clone();
    assert_eq!(
        (
            overloaded.layer(),
            overloaded.reason(),
            overloaded.retry_after()
        ),
        ("commands", Reason::WaitTimeout, 5 * SEC)
    );
    assert_eq!(unsent.into_message(), "second", "nothing is lost");
    assert_eq!(commands.handle().snapshot().timed_out, 1);
    assert_eq!(commands.handle().snapshot().waiting, 0);

    // One that finds room in time is sent.
    let mut waiting = Box::pin(commands.send_within("third", 3 * SEC));
    assert!(poll(&mut waiting).is_pending());
    advance(2 * SEC).await;
    assert_eq!(processor.recv().await, Some("first"));
    assert!(matches!(poll(&mut waiting), Poll::Ready(Ok(()))));
    assert_eq!(processor.recv().await, Some("third"));
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_nothing_does_not_wait() {
    let (commands, _processor) = bounded(1);
    let started = support::now();
    commands.send_within(1, Duration::ZERO).await.unwrap();
    let unsent = commands.send_within(2, Duration::ZERO).await.unwrap_err();
    assert_eq!(unsent.into_message(), 2);
    assert!(support::now() - started <= MS);
}

#[test]
fn with_room_no_runtime_is_needed() {
    let (commands, _processor) = bounded(1);
    let mut sending = Box::pin(commands.send_within(1, SEC));
    assert!(matches!(poll(&mut sending), Poll::Ready(Ok(()))));
}

#[tokio::test(start_paused = true)]
async fn the_hint_is_the_depth_over_the_drain() {
    let (commands, mut processor) = bounded(100);
    for command in 0..100 {
        commands.send(command).await.unwrap();
    }
    let refused = async || {
        let unsent = commands.send_within(0, 500 * MS).await.unwrap_err();
        unsent.overloaded().unwrap().retry_after()
    };
    assert_eq!(refused().await, 5 * SEC, "nothing has been received yet");

    // Ten in a second, each of which is replaced.
    for command in 0..10 {
        advance(100 * MS).await;
        processor.recv().await.unwrap();
        commands.send(command).await.unwrap();
    }
    // The mark is where the first of them was about to wait: 10 in 1.5 s, then 100 take 15 s.
    assert_eq!(refused().await, 15 * SEC);
    // And if it stands for long, nothing is known again.
    advance(11 * SEC).await;
    assert_eq!(refused().await, 5 * SEC);
}

/// Even the first that is refused knows how fast messages were received while it waited.
#[tokio::test(start_paused = true)]
async fn the_drain_is_measured_while_a_sender_waits() {
    let (commands, mut processor) = bounded(10);
    for command in 0..10 {
        commands.send(command).await.unwrap();
    }
    let mut first: Vec<_> = (0..5).map(|n| Box::pin(commands.send(n))).collect();
    first.retain_mut(|send| poll(send).is_pending());
    let mut last = Box::pin(commands.send_within(15, SEC));
    assert!(poll(&mut last).is_pending());
    for _ in 0..4 {
        advance(250 * MS).await;
        processor.recv().await.unwrap();
        first.retain_mut(|send| poll(send).is_pending());
    }
    let Poll::Ready(Err(unsent)) = poll(&mut last) else {
        panic!("four were in front of it")
    };
    assert_eq!(unsent.overloaded().unwrap().retry_after(), 2500 * MS);
}

/// A service may answer with it, and an `OverloadResponseLayer` knows what it is.
#[tokio::test(start_paused = true)]
async fn an_unsent_message_is_an_error_that_says_when_to_come_back() {
    let (commands, processor) = bounded(1);
    commands.send(1).await.unwrap();
    let unsent = || async { commands.send_within(2, MS).await.unwrap_err() };
    let error = unsent().await;
    assert!(Overloaded::find(&error).is_some(), "as its source");
    assert_eq!(error.to_string(), "the channel is full");
    assert!(Overloaded::find(unsent().await.into_error().as_ref()).is_some());
    drop(processor);
    let error = unsent().await;
    assert_eq!(error, Unsent::Closed { message: 2 });
    assert_eq!(error.to_string(), "the channel is closed");
    assert!(error.overloaded().is_none());
    assert!(error.into_error().is::<Closed<()>>());
}

#[tokio::test(start_paused = true)]
async fn an_offer_does_not_overtake_those_who_wait() {
    let (sender, mut receiver) = bounded(1);
    sender.send("first").await.unwrap();
    let mut waiting = Box::pin(sender.send("second"));
    assert!(poll(&mut waiting).is_pending());
    assert_eq!(receiver.recv().await, Some("first"));
    assert!(
        !sender.clone().lossy().offer("third"),
        "the room is the second's"
    );
    assert!(poll(&mut waiting).is_ready());
    assert_eq!(receiver.recv().await, Some("second"));
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_is_dropped_hands_its_room_on() {
    let (sender, mut receiver) = bounded(1);
    sender.send(1).await.unwrap();
    let mut second = Box::pin(sender.send(2));
    let mut third = Box::pin(sender.send_within(3, SEC));
    assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
    assert_eq!(receiver.recv().await, Some(1));
    drop(second); // which had just been given it
    assert!(matches!(poll(&mut third), Poll::Ready(Ok(()))));
    assert_eq!(receiver.recv().await, Some(3));
    assert_eq!(sender.handle().snapshot().sent, 2);
    assert_eq!(sender.handle().snapshot().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_room_that_nobody_else_gets() {
    let (sender, mut receiver) = bounded(1);
    let slot = sender.reserve().await.unwrap();
    let events = sender.clone().lossy();
    assert!(!events.offer(1));
    assert_eq!(sender.handle().snapshot().depth, 0, "nothing is in it");
    drop(slot);
    assert!(events.offer(2), "it was given back");
    assert_eq!(receiver.recv().await, Some(2));

    let slot = sender.reserve().await.unwrap();
    receiver.close();
    assert!(sender.reserve().await.is_err());
    assert_eq!(
        receiver.try_recv(),
        Err(TryRecvError::Empty),
        "it may come yet"
    );
    slot.send(3).unwrap();
    assert_eq!(receiver.recv().await, Some(3));
    assert_eq!(receiver.recv().await, None);
}

#[tokio::test]
async fn a_slot_whose_receiver_is_gone_gives_the_message_back() {
    let (sender, receiver) = bounded(1);
    let slot = sender.reserve().await.unwrap();
    drop(receiver);
    assert_eq!(slot.send("result"), Err(Closed("result")));
    assert_eq!(sender.handle().snapshot().sent, 0);
}

#[tokio::test(start_paused = true)]
async fn the_age_is_that_of_the_oldest_in_the_queue() {
    let (sender, mut receiver) = bounded(10);
    let handle = sender.handle();
    let oldest = || handle.snapshot().oldest_age;
    assert_eq!(oldest(), None);
    sender.send(1).await.unwrap();
    assert_eq!(oldest(), Some(Duration::ZERO));
    advance(300 * MS).await;
    sender.send(2).await.unwrap();
    sender.send(3).await.unwrap();
    advance(200 * MS).await;
    assert_eq!(oldest(), Some(500 * MS));
    receiver.recv().await.unwrap();
    assert_eq!(oldest(), Some(200 * MS));
    advance(100 * MS).await;
    receiver.recv().await.unwrap();
    assert_eq!(oldest(), Some(300 * MS));
    receiver.recv().await.unwrap();
    assert_eq!(oldest(), None);
}

/// A message that waits for room is not in the queue.
#[tokio::test(start_paused = true)]
async fn a_message_is_stamped_when_it_gets_into_the_queue() {
    let (sender, mut receiver) = bounded(1);
    sender.send(1).await.unwrap();
    let mut waiting = Box::pin(sender.send(2));
    assert!(poll(&mut waiting).is_pending());
    advance(SEC).await;
    receiver.recv().await.unwrap();
    assert!(poll(&mut waiting).is_ready());
    advance(MS).await;
    assert_eq!(sender.handle().snapshot().oldest_age, Some(MS));
}

#[tokio::test]
async fn the_saturation_is_from_0_to_1() {
    let (sender, mut receiver) = bounded(4);
    let handle = sender.handle();
    for (n, saturation) in [0.0, 0.25, 0.5, 0.75, 1.0].into_iter().enumerate() {
        assert_eq!(handle.saturation(), saturation);
        assert_eq!(handle.snapshot().saturation, saturation);
        assert_eq!((handle.depth(), handle.capacity()), (n, 4));
        if n < 4 {
            sender.send(n).await.unwrap();
        }
    }
    receiver.recv().await.unwrap();
    assert_eq!(handle.saturation(), 0.75);
}

#[tokio::test]
async fn receiving_may_be_cancelled() {
    let (sender, mut receiver) = bounded(2);
    let mut recv = Box::pin(receiver.recv());
    assert!(poll(&mut recv).is_pending());
    sender.send(1).await.unwrap();
    drop(recv); // it has been woken, and was not polled
    let mut buffer = Vec::new();
    {
        let mut many = Box::pin(receiver.recv_many(&mut buffer, 10));
        assert_eq!(poll(&mut many), Poll::Ready(1));
    }
    {
        let mut many = Box::pin(receiver.recv_many(&mut buffer, 10));
        assert!(poll(&mut many).is_pending());
        sender.send(2).await.unwrap();
    }
    assert_eq!(receiver.recv().await, Some(2));
    assert_eq!(buffer, [1]);
}

#[tokio::test]
async fn several_are_received_at_once_up_to_a_limit() {
    let (sender, mut receiver) = bounded(10);
    for n in 0..7 {
        sender.send(n).await.unwrap();
    }
    let mut buffer = Vec::new();
    assert_eq!(receiver.recv_many(&mut buffer, 0).await, 0);
    assert_eq!(receiver.recv_many(&mut buffer, 5).await, 5);
    assert_eq!(receiver.recv_many(&mut buffer, 5).await, 2);
    assert_eq!(buffer, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(sender.handle().snapshot().received, 7);
    drop(sender);
    assert_eq!(receiver.recv_many(&mut buffer, 5).await, 0);
}

#[tokio::test]
async fn a_closed_channel_is_drained() {
    let (sender, mut receiver) = bounded(3);
    sender.send(1).await.unwrap();
    sender.send(2).await.unwrap();
    assert!(!receiver.handle().snapshot().closed);
    receiver.close();
    assert_eq!(sender.send(3).await, Err(Closed(3)));
    assert!(sender.handle().snapshot().closed);
    assert_eq!(receiver.recv().await, Some(1));
    assert_eq!(receiver.try_recv(), Ok(2));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    assert_eq!(receiver.recv().await, None);
}

#[tokio::test]
async fn a_handle_does_not_keep_it_open() {
    let (sender, mut receiver) = bounded::<u32>(3);
    let handle = sender.handle();
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    drop(sender.clone());
    drop(sender.lossy());
    assert_eq!(receiver.recv().await, None);
    assert_eq!(handle.snapshot().capacity, 3);
}

#[tokio::test]
async fn what_is_in_the_queue_goes_with_the_receiver() {
    let message = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = bounded(3);
    sender.send(Arc::clone(&message)).await.unwrap();
    message.fetch_add(1, SeqCst);
    drop(receiver);
    assert_eq!(Arc::strong_count(&message), 1);
}

#[test]
#[should_panic(expected = "channel::bounded(0): capacity must be at least 1")]
fn a_channel_without_room_is_nonsense() {
    bounded::<()>(0);
}

#[test]
#[should_panic(expected = "capacity must be at most")]
fn a_channel_without_a_bound_is_nonsense() {
    bounded::<()>(usize::MAX);
}

/// Counts hold at any moment, whoever looks, and add up in the end.
#[test]
fn counts_hold_between_threads() {
    const SENDERS: u64 = 4;
    const EACH: u64 = 2000;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (sender, mut receiver) = bounded(3);
        let handle = sender.handle();
        for _ in 0..SENDERS {
            let sender = sender.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    sender.send(n).await.unwrap();
                }
            });
        }
        drop(sender);
        let looks = tokio::spawn(async move {
            loop {
                let now = handle.snapshot();
                assert!(now.depth <= 3 && now.saturation <= 1.0 && handle.depth() <= 3);
                assert_eq!(now.sent, now.received + now.depth as u64);
                assert_eq!(now.oldest_age.is_some(), now.depth > 0);
                if now.received == SENDERS * EACH {
                    return now;
                }
                tokio::task::yield_now().await;
            }
        });
        let mut received = 0;
        while receiver.recv().await.is_some() {
            received += 1;
        }
        assert_eq!(received, SENDERS * EACH);
        assert_eq!(looks.await.unwrap().depth, 0);
    });
}

#[test]
fn its_parts_can_be_sent_and_shared() {
    fn check<T: Send + Sync>(_: &T) {}
    let (sender, receiver) = bounded::<u32>(1);
    check(&sender);
    check(&sender.handle());
    check(&sender.clone().lossy());
    check(&receiver);
    drop(boxed(async move {
        sender.send_within(1, SEC).await.unwrap();
        sender.send(1).await.unwrap();
    }));
}
