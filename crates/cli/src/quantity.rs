//! Sizes and rates on a command line: `80GB`, `12.5 GB/s`, `312T`, `1e12`.

/// Decimal prefixes, as devices and networks are sold.
const PREFIXES: [(char, f64); 5] = [('K', 1e3), ('M', 1e6), ('G', 1e9), ('T', 1e12), ('P', 1e15)];

/// Bytes of a device's memory.
pub(crate) fn memory(text: &str) -> Result<f64, String> {
    above_zero(text, &["B"], "a size, such as 80GB")
}

/// Bytes per second.
pub(crate) fn bandwidth(text: &str) -> Result<f64, String> {
    above_zero(text, &["B/S", "B"], "bytes per second, such as 12.5GB")
}

/// Floating-point operations per second.
pub(crate) fn flops(text: &str) -> Result<f64, String> {
    above_zero(text, &["FLOP/S", "FLOPS", "FLOP"], "operations per second, such as 100T")
}

fn above_zero(text: &str, units: &[&str], wanted: &str) -> Result<f64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let bare = units.iter().find_map(|unit| upper.strip_suffix(unit)).unwrap_or(&upper).trim_end();
    let prefix =
        PREFIXES.iter().find_map(|(prefix, size)| Some((bare.strip_suffix(*prefix)?, size)));
    let (number, size) = prefix.map_or((bare, 1.0), |(number, size)| (number, *size));
    match number.trim_end().parse::<f64>().map(|number| number * size) {
        // More than any machine has is a slip, and would not fit into 64 bits.
        Ok(value) if value.is_finite() && value > 0.0 && value < 1e18 => Ok(value),
        _ => Err(format!("write {wanted}: above zero and below 1e18")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_are_read_and_nonsense_is_refused() {
        assert_eq!(memory("80GB"), Ok(80e9));
        assert_eq!(memory(" 1.5 mb "), Ok(1.5e6));
        assert_eq!(memory("1000"), Ok(1000.0));
        assert_eq!(bandwidth("12.5 GB/s"), Ok(12.5e9));
        assert_eq!(bandwidth("1G"), Ok(1e9));
        assert_eq!(flops("312T"), Ok(312e12));
        assert_eq!(flops("1 PFLOP/s"), Ok(1e15));
        assert_eq!(flops("1e12"), Ok(1e12));
        for text in ["", "0", "0GB", "-1GB", "GB", "much", "NaN", "inf", "1e30", "5 XB", "é"] {
            assert!(memory(text).unwrap_err().contains("80GB"), "{text}");
            assert!(flops(text).is_err() && bandwidth(text).is_err(), "{text}");
        }
    }
}
