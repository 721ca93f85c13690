//! Named cloud regions and their distances.
//!
//! Round trips in milliseconds, close to the values that are commonly measured between the regions
//! of the large clouds in these places. They are realistic enough to emulate a WAN on one machine.
//! No provider guarantees them.

/// The regions, in the order of [`ROUND_TRIPS_MS`].
pub const NAMES: [&str; 15] = [
    "us-east",
    "us-central",
    "us-west",
    "ca-central",
    "sa-east",
    "eu-west",
    "eu-central",
    "eu-north",
    "me-central",
    "af-south",
    "ap-south",
    "ap-southeast",
    "ap-east",
    "ap-northeast",
    "au-southeast",
];

/// The default regions of a demo, on three continents.
pub const DEFAULT: &str = "us-east,eu-west,ap-northeast";

/// Round trips from a region to those before it in [`NAMES`].
const ROUND_TRIPS_MS: [&[u16]; NAMES.len()] = [
    // us-east: Virginia
    &[],
    // us-central: Iowa
    &[28],
    // us-west: Oregon
    &[67, 39],
    // ca-central: Montreal
    &[16, 31, 60],
    // sa-east: São Paulo
    &[115, 138, 176, 124],
    // eu-west: Ireland
    &[68, 92, 119, 68, 176],
    // eu-central: Frankfurt
    &[91, 107, 141, 92, 202, 25],
    // eu-north: Stockholm
    &[112, 125, 158, 105, 216, 40, 22],
    // me-central: the Emirates
    &[178, 205, 235, 185, 290, 122, 114, 136],
    // af-south: Cape Town
    &[226, 250, 276, 224, 338, 160, 154, 178, 168],
    // ap-south: Mumbai
    &[190, 222, 219, 190, 300, 124, 123, 140, 38, 272],
    // ap-southeast: Singapore
    &[217, 198, 163, 214, 327, 174, 157, 178, 92, 310, 62],
    // ap-east: Hong Kong
    &[203, 175, 146, 199, 310, 205, 186, 204, 124, 340, 94, 37],
    // ap-northeast: Tokyo
    &[149, 128, 97, 143, 256, 201, 226, 250, 156, 370, 129, 70, 52],
    // au-southeast: Sydney
    &[198, 176, 140, 199, 311, 256, 251, 275, 184, 410, 152, 93, 129, 104],
];

/// Returns the round trip between two regions in milliseconds, or `None` if a name is unknown.
pub fn round_trip_ms(a: &str, b: &str) -> Option<f64> {
    let place = |name| NAMES.iter().position(|&known| known == name);
    let (a, b) = (place(a)?, place(b)?);
    if a == b {
        return Some(0.0);
    }
    Some(f64::from(ROUND_TRIPS_MS[a.max(b)][a.min(b)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_regions_are_as_far_apart_as_light_allows_and_the_same_both_ways() {
        for (i, a) in NAMES.iter().enumerate() {
            assert_eq!(ROUND_TRIPS_MS[i].len(), i, "{a} has no round trip");
            assert_eq!(round_trip_ms(a, a), Some(0.0));
            for b in &NAMES[..i] {
                let ms = round_trip_ms(a, b).unwrap();
                assert_eq!(round_trip_ms(b, a), Some(ms), "{a} {b}");
                assert!((10.0..=450.0).contains(&ms), "{a} {b} {ms}");
            }
        }
    }

    #[test]
    fn names_are_unique_and_the_default_is_made_of_them() {
        let names: std::collections::BTreeSet<_> = NAMES.iter().collect();
        assert_eq!(names.len(), NAMES.len());
        assert!(DEFAULT.split(',').all(|name| NAMES.contains(&name)));
        assert_eq!(round_trip_ms("us-east", "atlantis"), None);
    }

    #[test]
    fn no_detour_is_much_shorter_than_the_way() {
        // Routes of the internet violate the triangle inequality, but not by half.
        for a in NAMES {
            for b in NAMES {
                for via in NAMES {
                    let ms = |a, b| round_trip_ms(a, b).unwrap();
                    let detour = ms(a, via) + ms(via, b);
                    assert!(ms(a, b) <= detour * 1.5, "{a} {b} by {via}");
                }
            }
        }
    }
}
