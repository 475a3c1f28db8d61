//! The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of a number decides every bit of another.

/// The step between the numbers of SplitMix64, an odd number without a pattern.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Scrambles a number; no two numbers become the same one.
pub fn finalise(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's first numbers from the seed 1234567, as its reference implementation prints them.
    #[test]
    fn the_published_numbers_come_out() {
        let numbers = [1, 2].map(|i| finalise(1_234_567_u64.wrapping_add(STEP.wrapping_mul(i))));
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }
}
