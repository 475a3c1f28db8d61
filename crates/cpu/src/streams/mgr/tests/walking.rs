//! One token at a time.

use super::*;
use crate::streams::reference::Case;

const JUNCTIONS: usize = 8;

#[test]
fn one_token_at_a_time_gets_the_same_outputs() {
    // Gates are about 0.05, so that some tokens skip.
    let threshold = Skip { shrink: 0.5, ..Skip::hard(vec![0.088; JUNCTIONS - 1]) };
    for gate in GATES {
        for (streams, skip) in [(1, None), (3, None), (20, None), (3, Some(threshold.clone()))] {
            let settings = Settings { skip, ..settings(37, streams, gate) };
            let chain = Chain::random(settings.clone(), JUNCTIONS, 20, 21);
            let writes: Vec<Vec<f32>> = chain.writes.iter().map(|write| narrow(write)).collect();
            let case = Case {
                tokens: 20,
                width: 37,
                d_outputs: writes.clone(),
                writes,
                params: chain.params(),
            };
            case.check_decode(|| Mgr::new(settings.clone(), JUNCTIONS, false));
        }
    }
}
