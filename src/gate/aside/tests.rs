//! Who is told what, and until when.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    shed::{Answer, give_rejection, is_not_waiting, tell_full},
    *,
};
use crate::Reason;

fn limiter() -> (LimiterId, Arc<u8>) {
    let limiter = Arc::new(0);
    (LimiterId::of(&limiter), limiter)
}

fn rejection(layer: &'static str) -> Box<Overloaded> {
    let second = Duration::from_secs(1);
    Box::new(Overloaded::new(layer, Reason::AtLimit, second))
}

fn full(cx: &Context<'_>, limiter: LimiterId) {
    assert!(!give_rejection(cx, limiter, || panic!(
        "nobody asked for it"
    )));
    tell_full(cx, limiter);
}

#[track_caller]
fn assert_nothing_is_told() {
    TOLD.with(|told| {
        assert_eq!(told.time.get(), None);
        assert_eq!(told.polled_by.get(), None);
        assert_eq!(told.waited.get(), None);
        assert_eq!(told.full.get(), None);
        assert_eq!(told.rejects.get(), None);
        assert_eq!(told.rejection.take(), None);
        assert!(!told.in_vain.get());
        assert!(matches!(
            told.hand_back.take(),
            hand_back::HandBack::NotWanted
        ));
        assert!(!told.on_trial.get());
        assert!(told.held.is_empty());
    });
}

#[test]
fn what_is_told_ends_with_a_panic() {
    let (limiter, _alive) = limiter();
    let waited = Waited {
        own: Duration::from_secs(1),
        oldest: None,
    };
    let request = std::sync::Arc::new(());
    let panicked = catch_unwind(|| {
        let _told = (
            tell_time(&Now::at(Some(crate::clock::instant()))),
            waited::poll_for(limiter),
            waited.tell(limiter),
            on_trial(true),
            nested::hold(|| Some(limiter)),
            hand_back::want(),
        );
        hand_back::give(std::sync::Arc::clone(&request));
        may_be_in_vain(|| {
            ready_in_vain();
            shed::reject(limiter, |cx| -> Poll<()> {
                full(&Context::from_waker(Waker::noop()), limiter);
                assert!(give_rejection(cx, limiter, || rejection("asked")));
                tell_full(cx, limiter);
                panic!("the inner service")
            })
        })
    });
    assert!(panicked.is_err());
    assert_nothing_is_told();
    assert_eq!(std::sync::Arc::strong_count(&request), 1);
}

#[test]
fn what_was_told_before_is_told_again() {
    let [outer, inner] = [(); 2].map(|()| limiter());
    let telling = waited::poll_for(outer.0);
    let polled = catch_unwind(|| {
        let _telling = waited::poll_for(inner.0);
        assert_eq!(waited::polled_by(), Some(inner.0));
        panic!("the inner service")
    });
    assert!(polled.is_err());
    assert_eq!(waited::polled_by(), Some(outer.0));
    drop(telling);
    let (_, in_vain) = may_be_in_vain(|| {
        let (_, in_vain) = may_be_in_vain(ready_in_vain);
        assert!(in_vain);
        let (_, in_vain) = may_be_in_vain(|| ());
        assert!(!in_vain, "that was another one");
    });
    assert!(in_vain);
    let trial = on_trial(true);
    drop(on_trial(false));
    assert!(is_on_trial());
    drop((trial, TOLD.with(|told| told.in_vain.take())));
    assert_nothing_is_told();
}

#[test]
fn the_time_is_told_to_one() {
    let told = tell_time(&Now::at(Some(crate::clock::instant())));
    assert!(take_time().known().is_some());
    assert!(take_time().known().is_none());
    drop(told);
    assert!(take_time().known().is_none());
}

#[test]
fn only_the_waker_of_one_that_does_not_wait_is_known() {
    let _ = shed::poll(|cx| {
        assert!(is_not_waiting(cx));
        assert!(is_not_waiting(&Context::from_waker(&cx.waker().clone())));
        Poll::Ready(())
    });
    assert!(!is_not_waiting(&Context::from_waker(Waker::noop())));
    assert!(!is_not_waiting(&Context::from_waker(&shed::nobody())));
}

#[test]
fn the_nearest_shed_is_told_which_was_full_the_last_one_if_there_are_several() {
    let [outer, first, last] = [(); 3].map(|()| limiter());
    let (_, told) = shed::poll(|cx| {
        full(cx, outer.0);
        let (_, told) = shed::poll(|cx| {
            full(cx, first.0);
            full(cx, last.0);
            Poll::<()>::Pending
        });
        assert_eq!(told, Some(last.0));
        Poll::<()>::Pending
    });
    assert_eq!(told, Some(outer.0));
    let (_, none) = shed::poll(|_| Poll::<()>::Pending);
    assert_eq!(none, None);
}

#[test]
fn only_the_one_that_is_asked_rejects() {
    let [asked, other] = [(); 2].map(|()| limiter());
    let answer = shed::reject(asked.0, |cx| {
        full(cx, other.0);
        assert!(give_rejection(cx, asked.0, || rejection("asked")));
        full(cx, asked.0); // it has rejected the request already
        let (_, inner) = shed::poll(|cx| {
            full(cx, asked.0);
            Poll::<()>::Pending
        });
        assert_eq!(inner, Some(asked.0));
        Poll::<()>::Pending
    });
    assert!(matches!(answer, Answer::Rejected(is, false) if is == rejection("asked")));
    let answer = shed::reject(asked.0, |cx| {
        full(cx, other.0);
        Poll::<()>::Pending
    });
    let Answer::NotRejected(Poll::Pending, Some(full)) = answer else {
        panic!("another one is full by now")
    };
    assert_eq!(full, other.0);
}

#[test]
fn what_a_shed_further_in_is_given_is_not_taken_for_what_was_given_before() {
    let [outer, inner] = [(); 2].map(|()| limiter());
    for gives in [true, false] {
        let answer = shed::reject(outer.0, |cx| {
            assert!(give_rejection(cx, outer.0, || rejection("outer")));
            let answer = shed::reject(inner.0, |cx| {
                assert_eq!(
                    gives,
                    gives && give_rejection(cx, inner.0, || rejection("inner"))
                );
                Poll::<()>::Pending
            });
            let given = matches!(answer, Answer::Rejected(is, false) if is.layer() == "inner");
            assert_eq!(given, gives);
            Poll::<()>::Pending
        });
        assert!(matches!(answer, Answer::Rejected(is, false) if is.layer() == "outer"));
    }
}

#[test]
fn a_request_is_handed_back_to_the_nearest_that_wants_it() {
    fn taken(wanting: hand_back::Wanting) -> Option<u8> {
        let given = wanting.end().then(hand_back::take)??;
        given.downcast().ok().map(|request| *request)
    }
    let outer = hand_back::want();
    let inner = hand_back::want();
    hand_back::give(1_u8);
    hand_back::give(2_u8);
    assert_eq!(taken(inner), Some(2));
    let inner = hand_back::want();
    assert_eq!(taken(inner), None);
    hand_back::give(4_u8);
    assert_eq!(taken(hand_back::want()), None, "it is the outer one's");
    let ignoring = hand_back::ignore();
    hand_back::give(5_u8);
    drop(ignoring);
    assert_eq!(taken(outer), Some(4));
}

#[test]
fn a_request_is_not_kept_for_nobody() {
    let request = std::sync::Arc::new(());
    hand_back::give(std::sync::Arc::clone(&request));
    let wanting = hand_back::want();
    hand_back::give(std::sync::Arc::clone(&request));
    drop(wanting);
    assert_eq!(std::sync::Arc::strong_count(&request), 1);
}

#[test]
fn a_request_whose_drop_panics_or_gives_another_does_no_harm() {
    struct GivesAnother;
    impl Drop for GivesAnother {
        fn drop(&mut self) {
            hand_back::give(7_u8);
            panic!("a foreign destructor");
        }
    }
    let wanting = hand_back::want();
    hand_back::give(GivesAnother);
    let replaced = catch_unwind(AssertUnwindSafe(|| hand_back::give(8_u8)));
    assert!(replaced.is_err());
    assert!(wanting.end() && hand_back::take().is_some());
    let wanting = hand_back::want();
    hand_back::give(GivesAnother);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(wanting))).is_err());
    assert_nothing_is_told();
}

#[test]
fn a_trial_keeps_no_request_back() {
    let handover = handover::Handover::<u8>::begin();
    handover::keep_back();
    let trial = handover::restore_after();
    handover::reject();
    drop(trial);
    assert_eq!(handover.end(), KeptBack::Waits);
}
