//! The bounds of fairness, over random arrivals, service times, weights and numbers of seats.

use super::*;
use proptest::prelude::*;

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// How one tenant behaves.
#[derive(Clone, Copy, Debug)]
struct Kind {
    weight: u32,
    /// Longest service time; they are spread evenly below, or nine in ten are a tenth of it.
    longest: u64,
    bimodal: bool,
    width: u32,
    /// How many requests it keeps waiting; it is away at times, if `comes_and_goes`.
    keeps: u32,
    comes_and_goes: bool,
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = (
        1_u32..=10,
        1_u64..=100,
        any::<bool>(),
        1_u32..=40,
        any::<bool>(),
    );
    let kind = kind.prop_map(|(weight, longest, bimodal, keeps, comes_and_goes)| Kind {
        weight,
        longest: longest * 1_000_000,
        bimodal,
        width: 1,
        keeps,
        comes_and_goes,
    });
    prop::collection::vec(kind, 2..5)
}

/// By how much two tenants' service, for their weights, drifted apart while both had requests waiting: the
/// most, in any interval, in units of `l_f/w_f + l_g/w_g`.
struct Gap {
    pair: (usize, usize),
    /// Smallest and largest difference since both have requests waiting.
    range: Option<(f64, f64)>,
    most: f64,
}

impl Gap {
    fn look(&mut self, had: &[u64], kinds: &[Kind], backlogged: &[bool]) {
        let (f, g) = self.pair;
        let part = |i: usize| had[i] as f64 / f64::from(kinds[i].weight);
        if !(backlogged[f] && backlogged[g]) {
            self.range = None;
            return;
        }
        let now = part(f) - part(g);
        let (least, most) = self.range.unwrap_or((now, now));
        let (least, most) = (least.min(now), most.max(now));
        self.range = Some((least, most));
        self.most = self.most.max(most - least);
    }

    fn units(&self, server: &Server, kinds: &[Kind]) -> f64 {
        let (f, g) = self.pair;
        let part = |i: usize| server.largest[i] as f64 / f64::from(kinds[i].weight);
        self.most / (part(f) + part(g)).max(1.0)
    }
}

/// Runs for so many completions; gives the largest gap of any pair, and what each has had.
fn run(
    seed: u64,
    kinds: &[Kind],
    seats: u32,
    seats_change: bool,
    completions: usize,
) -> (f64, Vec<u64>) {
    let weights: Vec<_> = kinds.iter().map(|kind| kind.weight).collect();
    let mut random = Random(seed);
    let mut server = Server::new(seats, &weights);
    let pairs = (0..kinds.len()).flat_map(|f| (0..f).map(move |g| (f, g)));
    let mut gaps: Vec<_> = pairs
        .map(|pair| Gap {
            pair,
            range: None,
            most: 0.0,
        })
        .collect();
    let mut away = vec![false; kinds.len()];
    while server.completed < completions {
        let mut ran_dry = vec![false; kinds.len()];
        for (i, kind) in kinds.iter().enumerate() {
            if kind.comes_and_goes && random.below(100) == 0 {
                away[i] = !away[i];
            }
            while !away[i] && server.queue.state(i as u32).waiting < kind.keeps {
                ran_dry[i] |= server.queue.state(i as u32).waiting == 0;
                let lasts = match kind.bimodal {
                    true if random.below(10) > 0 => kind.longest / 10,
                    true => kind.longest,
                    false => random.below(kind.longest) + 1,
                };
                server.arrive(Job {
                    tenant: i as u32,
                    id: 0,
                    width: kind.width,
                    lasts,
                });
            }
        }
        if seats_change && random.below(50) == 0 {
            server.seats = 1 + random.below(seats.into()) as u32;
            server.dispatch();
        }
        if server.next_end().is_none() {
            continue; // all are away
        }
        server.end();
        let backlogged: Vec<_> = (0..kinds.len() as u32)
            .map(|i| server.queue.state(i).waiting > 0)
            .collect();
        let had = server.had();
        for gap in &mut gaps {
            if ran_dry[gap.pair.0] || ran_dry[gap.pair.1] {
                gap.range = None;
            }
            gap.look(&had, kinds, &backlogged);
        }
    }
    let units = gaps.iter().map(|gap| gap.units(&server, kinds));
    (units.fold(0.0, f64::max), server.had())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn with_one_seat_no_two_are_further_apart_than_one_request_of_each(
        kinds in kinds(),
        seed in any::<u64>(),
    ) {
        let (gap, _) = run(seed, &kinds, 1, false, 2000);
        prop_assert!(gap <= 1.0 + 1e-6, "{}", gap);
    }

    #[test]
    fn with_more_seats_no_further_than_they_are_many(
        kinds in kinds(),
        seats in 2_u32..=16,
        seats_change in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (gap, _) = run(seed, &kinds, seats, seats_change, 2000);
        prop_assert!(gap <= f64::from(seats) + 1.0, "{} with {} seats", gap, seats);
    }

    /// After a hundred completions for each seat, and where weights differ for each part of the weights. Where
    /// most requests are short and a few are long, after three hundred: they are apart by one that is long,
    /// and so many are three times as much of those.
    #[test]
    fn those_who_always_want_more_soon_have_the_same_for_their_weight(
        mut kinds in kinds(),
        seats in 1_u32..=16,
        weighted in any::<bool>(),
        seed in any::<u64>(),
    ) {
        for kind in &mut kinds {
            kind.comes_and_goes = false;
            kind.keeps = kind.keeps.max(seats);
            // Of a kind: it takes longer to be fair to somebody with few requests that are a hundred times
            // longer than all others.
            kind.longest = 50_000_000 + kind.longest / 2;
            kind.weight = if weighted { kind.weight } else { 1 };
        }
        let parts: u32 = kinds.iter().map(|kind| kind.weight).sum();
        let times = if weighted { parts } else { 1 };
        let times = times * if kinds.iter().any(|kind| kind.bimodal) { 3 } else { 1 };
        let (_, had) = run(seed, &kinds, seats, false, (100 * seats * times) as usize);
        let parts: Vec<_> = (had.iter().zip(&kinds))
            .map(|(had, kind)| *had as f64 / f64::from(kind.weight))
            .collect();
        prop_assert!(jain(&parts) >= 0.99, "{:?}", parts);
    }

    #[test]
    fn wide_requests_are_no_exception(
        mut kinds in kinds(),
        widths in prop::collection::vec(1_u32..=4, 4),
        seats in 4_u32..=16,
        seed in any::<u64>(),
    ) {
        for (kind, width) in kinds.iter_mut().zip(widths) {
            kind.width = width;
        }
        let (gap, _) = run(seed, &kinds, seats, false, 2000);
        prop_assert!(gap <= f64::from(seats) + 1.0, "{} with {} seats", gap, seats);
    }
}
