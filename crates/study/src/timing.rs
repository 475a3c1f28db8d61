//! Times in turn, so that any other load on the machine disturbs all alike.

/// Lets each of several subjects do a piece of `work` in turn, and returns the results, one for each round that counts.
/// The first `warm_up` rounds do not: memory is still being mapped, and the clock still rising.
pub fn in_turn<S, T, E>(
    subjects: &mut [S],
    warm_up: usize,
    rounds: usize,
    mut work: impl FnMut(&mut S, usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut found: Vec<Vec<T>> = subjects.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..warm_up + rounds {
        for (subject, found) in subjects.iter_mut().zip(&mut found) {
            let value = work(subject, round)?;
            if round >= warm_up {
                found.push(value);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_turn_in_every_round_and_the_first_do_not_count() {
        let mut order = Vec::new();
        let found = in_turn(&mut ["a", "b"], 1, 2, |name, round| {
            order.push((*name, round));
            Ok::<_, ()>(round)
        });
        assert_eq!(found.unwrap(), [[1, 2], [1, 2]]);
        assert_eq!(order, [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]);
        assert_eq!(in_turn(&mut [0], 0, 1, |_, _| Err::<(), _>("stop")), Err("stop"));
    }
}
