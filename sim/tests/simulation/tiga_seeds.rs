//! Seeds of all kinds of drawn runs of Tiga.

use pangea_protocols::tiga::Tiga;

use crate::runs::clean;
use crate::tiga_kinds::KINDS;

#[test]
fn seeds_of_each_kind_are_clean() {
    for (kind, draw, _) in KINDS {
        for seed in 50_000..50_002 {
            let (settings, options) = draw(seed);
            clean::<Tiga>(&settings, &options);
        }
        println!("{kind}: clean");
    }
}
