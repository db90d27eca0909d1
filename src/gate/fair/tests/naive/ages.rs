//! Admission by age.

use super::*;

impl Naive {
    /// Closes the windows that are over. So many of those in flight were admitted before.
    pub(super) fn roll(&mut self, in_flight: usize) {
        if !self.law.may_be_due(self.now) {
            return;
        }
        let admitted = self.completed + in_flight as u64;
        self.law.note_calm(admitted.saturating_sub(self.knows_of));
        self.knows_of = admitted;
        if self.law.is_due(self.now) {
            self.law.roll(self.now, self.completed);
        }
    }

    /// Whether the law need not be told of a request.
    pub(super) fn is_quiet(&self, age: u64) -> bool {
        let below = self.law.peak().min(self.law.limit());
        age == 0
            && self.cap == usize::MAX
            && self.now < self.law.calm_until()
            && (self.in_flight() as u64) < below
    }

    /// In which order a waiter is next.
    pub(super) fn order(&self, lane: Lane) -> Order {
        match self.newest_first {
            true => self.law.order(self.now, lane),
            false => Order::OldestFirst,
        }
    }

    /// How many may wait when one comes for this lane.
    pub(super) fn places(&self, lane: Lane) -> usize {
        let for_newest = self.law.places(lane, self.in_flight() as u64) as usize;
        match self.order(lane) {
            Order::NewestFirst if self.floor > 0 && self.waiting_in(lane) == 0 => self.max_waiting,
            Order::NewestFirst => for_newest.min(self.max_waiting),
            Order::OldestFirst => self.max_waiting,
        }
    }

    /// Where less important requests wait, those are to be rejected for their age, and no others.
    pub(super) fn is_spared(&self, lane: Lane) -> bool {
        self.waiting.iter().any(|waiter| waiter.lane < lane)
    }

    /// One was rejected because of its deadline.
    pub(super) fn note_late(&mut self, (tenant, lane): Who) {
        if self.may_run(tenant) {
            self.law.note_late(lane);
        }
    }

    /// More came than that, and one of this tenant was rejected. If the tenant waits for its own others, that says nothing.
    pub(super) fn note_no_place(&mut self, (tenant, lane): Who) {
        if self.may_run(tenant) {
            let order = self.order(lane);
            self.law.note_no_place(lane, order);
        }
    }

    /// One that is too old is let in while a queue stands, to see whether it still does: one in a tenth of a second.
    pub(super) fn note_probe(&mut self) {
        let last = self.probed.replace(self.now);
        assert!(
            last.is_none_or(|last| self.now - last > 100 * MS),
            "it is too old"
        );
    }

    pub(super) fn judge(
        &mut self,
        age: u64,
        own: u64,
        others: usize,
        next: Option<(Lane, bool)>,
    ) -> Result<(), Reason> {
        let oldest = self.oldest_that_may_run();
        let entry = Entry {
            age,
            own,
            oldest,
            in_flight: others as u64,
        };
        let Settings {
            target,
            max_sojourn,
            ..
        } = self.law.settings;
        let is_old = age > target.saturating_mul(2);
        let stands = self.law.report(self.now).overloaded;
        let verdict = match next {
            Some((lane, spared)) => self.law.enter_next(self.now, &entry, lane, spared),
            None => self.law.enter(self.now, &entry),
        };
        let still_stands = stands && self.law.report(self.now).overloaded;
        let in_the_way = own > target && (others > 0 || oldest.is_some());
        match verdict {
            Verdict::Admit => {
                let is_spared = next.is_some_and(|(_, spared)| spared);
                if still_stands && is_old && in_the_way && !is_spared {
                    self.note_probe();
                }
                self.knows_of += 1;
                Ok(())
            }
            Verdict::TooOld => {
                assert!(is_old || max_sojourn.is_some_and(|max| age > max));
                Err(Reason::TooOld)
            }
            Verdict::Full => Err(Reason::AtLimit),
        }
    }
}
