//! Terms of a report, for readers who do not know the papers.

/// A word and what it means.
pub(super) const GLOSSARY: [(&str, &str); 18] = [
    (
        "residual stream",
        "What flows from layer to layer: every layer reads from it and writes something back. How it reads and writes is the policy that is compared here.",
    ),
    (
        "policy",
        "One such way. prenorm is the usual one: add every layer's output to a single stream. mgr keeps several streams and gates what is written; nag turns the stream instead of adding to it; attnres lets every layer choose among all earlier outputs.",
    ),
    (
        "loss, nats",
        "How surprised the model is by the right next token. 0 is certainty; ln(2) = 0.69 nats is a coin toss. Lower is better.",
    ),
    (
        "perplexity",
        "e to the loss: among how many equally likely tokens the model seems to choose.",
    ),
    ("held-out data", "Data the model has never learnt from. What counts is the loss there."),
    (
        "seed",
        "The number that random choices start from. Runs with the same seed see the same data in the same order, so policies are compared seed by seed.",
    ),
    (
        "95 % interval",
        "Where the true difference lies, as far as the seeds can tell; intervals made this way hold it 19 times out of 20. If zero is inside, there may be no difference.",
    ),
    (
        "p-value",
        "How often luck alone would make a difference at least as large. Below 0.05 we call it one. With several comparisons it is made stricter (Holm), since many tries find something by luck.",
    ),
    (
        "no difference seen",
        "Also called not distinguishable. The seeds differ about as much as the policies do. It does not mean that they are equal: more seeds may tell.",
    ),
    (
        "would have been seen",
        "A smaller difference may be there: so many seeds, differing as these do, would show this one in four of five repetitions (80 % power).",
    ),
    (
        "look, undecided",
        "A suite may add seeds until its comparisons are decided. It looks at them at times that were planned before, each time at a stricter level than for a single look, since many looks find something by luck. Undecided means that no look has told them apart; it does not mean that they are equal.",
    ),
    (
        "faster, fewer tokens, less time",
        "How many times as much training the baseline needs to get as low as it ends: in tokens, or by the clock. It is an estimate from mean curves and has no interval of its own.",
    ),
    (
        "gradient norm",
        "How strongly a step wants to change the parameters. Steady is healthy; spikes come before trouble.",
    ),
    (
        "dilution",
        "The stream grows with depth while what a layer writes does not, so that late layers change it less and less.",
    ),
    (
        "angular distance",
        "How far the stream turns between two layers, as a share of half a turn. 0: nothing changed, so the layers between could be left out.",
    ),
    (
        "massive activation",
        "A few numbers thousands of times larger than the others. They make a model hard to compress and often sit at the first token.",
    ),
    ("gate", "A number between 0 and 1 that says how much of something is let through."),
    (
        "attention on the first token",
        "Attention that has nothing to look at often goes there. Much of it means many idle heads.",
    ),
];
