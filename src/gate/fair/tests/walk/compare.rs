//! What has to be the same after each step.

use super::*;

impl Walk {
    pub(super) fn show(&mut self) {
        let shown = self.gate.shows().shown;
        self.naive.show();
        let naive = &self.naive;
        assert_eq!(
            (shown.counts.served, shown.counts.refused),
            (naive.served, naive.refused)
        );
        assert_eq!(shown.counts.anonymous, naive.tenants[0].served);
        assert_eq!(
            (shown.counts.tenants, shown.counts.overflowed),
            (naive.names().len(), naive.overflowed)
        );
    }

    pub(super) fn compare(&mut self) {
        assert_consistent(&self.gate);
        self.compare_fates();
        self.compare_room();
        self.compare_permits();
        self.compare_tenant(Some(0), &Tenant::Anonymous);
        self.compare_tenant(Some(OVERFLOW), &Tenant::Overflow);
        for name in &NAMES[1..] {
            self.compare_tenant(self.naive.known(name), &Tenant::from(*name));
        }
    }

    fn compare_fates(&self) {
        let slow = lock(&self.gate.slow);
        for request in &self.requests {
            let Stage::Waits(waiter) = &request.stage else {
                continue;
            };
            let fate = match slow.room.seats[waiter.seat].state {
                State::Waits(_) => Answer::Waits,
                State::Goes(_) => Answer::Goes,
                State::Rejected(rejection) => Answer::Rejected(rejection.reason),
            };
            assert_eq!(fate, self.naive.fate(request.id), "request {}", request.id);
            let is_woken = usize::from(fate != Answer::Waits);
            assert_eq!(waiter.woken.times(), is_woken, "request {}", request.id);
        }
    }

    fn compare_room(&self) {
        let naive = &self.naive;
        let slow = lock(&self.gate.slow);
        let room = &slow.room;
        assert_eq!(self.gate.load().queued(), naive.has_next());
        assert_eq!(room.queue.running(), naive.counted());
        let waiters = self.requests.iter();
        let seats = waiters.filter(|request| matches!(request.stage, Stage::Waits(_)));
        assert_eq!(room.seats.taken(), seats.count());
        assert_eq!(room.busy.total(naive.now), naive.busy(0));
        assert_eq!(room.serves.report(naive.now), naive.law.report(naive.now));
        assert_eq!(room.serves.limit(), naive.law.limit());
    }

    fn compare_permits(&mut self) {
        let peak = self.naive.take_peak();
        let naive = &self.naive;
        let permits = self.gate.snapshot();
        assert_eq!(permits.limit, naive.limit);
        assert_eq!(permits.in_flight, naive.in_flight());
        assert_eq!(permits.peak_in_flight, peak);
        assert_eq!(permits.waiting, naive.waiting());
        let waited = |since: u64| Duration::from_nanos(naive.now - since);
        assert_eq!(permits.oldest_wait, naive.oldest(None).map(waited));
        let admitted = naive.completed + naive.in_flight() as u64;
        assert_eq!(permits.admitted, admitted);
        assert_eq!(permits.rejected, naive.counts);
        assert_eq!(permits.waits.count(), naive.waits.len() as u64);
        let sum = Duration::from_nanos(naive.waits.iter().sum());
        assert_eq!(permits.waits.sum, sum);
    }

    fn compare_tenant(&self, known: Option<usize>, name: &Tenant) {
        let naive = &self.naive;
        let shown = self.gate.tenant(name);
        let (Some(tenant), Some(shown)) = (known, &shown) else {
            assert!(known.is_none() && shown.is_none(), "{name} is known to one");
            return;
        };
        let expected = &naive.tenants[tenant];
        let waited = |since: u64| Duration::from_nanos(naive.now - since);
        let &TenantSnapshot {
            weight,
            waiting,
            running,
            served,
            rejected,
            refused,
            oldest_wait,
            ..
        } = shown;
        assert_eq!(weight, expected.weight);
        assert_eq!(waiting, naive.waiting_of(tenant), "{name} waits");
        assert_eq!(running, naive.running_of(tenant), "{name} runs");
        assert_eq!(served, expected.served, "{name} was served");
        assert_eq!(rejected, expected.rejected, "{name} was rejected");
        assert_eq!(refused, expected.refused, "{name} was refused");
        assert_eq!(oldest_wait, naive.oldest(Some(tenant)).map(waited));
    }
}
