//! `strftime_now`, with which templates tell the model today's date. In UTC, because the system's zone needs a library.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The first of January 1970 was a Thursday.
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A time since 1970 as Python's `strftime` writes it; what it does not know stays as it is.
pub(super) fn format(since: Duration, pattern: &str) -> String {
    let seconds = since.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let twelve = (hour + 11) % 12 + 1;
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        let code = if c == '%' { rest.next() } else { None };
        // Writing to a text does not fail.
        let _ = match code {
            None => write!(out, "{c}"),
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{day_name}"),
            Some('a') => write!(out, "{}", &day_name[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{twelve:02}"),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{:02}", second % 60),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{:02}", second % 60),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
        };
    }
    out
}

/// Year, month and day of a day since 1970 (Howard Hinnant's `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_python() {
        // datetime.fromtimestamp(t, UTC).strftime(..)
        for (seconds, expected) in [
            (0, "Thu 01 Jan 1970 00:00:00 AM 12 70 1970-01-01"),
            (951_782_399, "Mon 28 Feb 2000 23:59:59 PM 11 00 2000-02-28"),
            (951_782_400, "Tue 29 Feb 2000 00:00:00 AM 12 00 2000-02-29"),
            (1_735_689_599, "Tue 31 Dec 2024 23:59:59 PM 11 24 2024-12-31"),
            (4_107_542_400, "Mon 01 Mar 2100 00:00:00 AM 12 00 2100-03-01"),
        ] {
            let time = Duration::from_secs(seconds);
            assert_eq!(format(time, "%a %d %b %Y %H:%M:%S %p %I %y %F"), expected);
        }
        assert_eq!(format(Duration::ZERO, "%A, %B %% %Q %"), "Thursday, January % %Q %");
    }
}
