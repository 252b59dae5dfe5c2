"""The campaigns by name."""

from campaigns.tally import Campaign

CAMPAIGNS = {
    "images": Campaign(
        tried="an image file with flipped bits, cuts, pieces of other files or edited headers is decoded",
        lost_if="anything but a picture or `BadImageError`; 2 s of processor time; 1 GiB",
        tries=100_000,
        short=1_500,
    ),
    "readers": Campaign(
        tried="an input that atheris makes, guided by coverage, for the readers of images, CSV files, "
        "recipes, formulas and index folders",
        lost_if="an exception that is not ours, 20 s, or 2 GiB",
        tries=50_000,
        short=500,
    ),
    "requests": Campaign(
        tried="a malformed or odd request to the running server, by raw sockets or by schemathesis",
        lost_if="an answer 500, text of a file outside of the image root, an answer that contradicts the "
        "OpenAPI description, 100 MiB more memory, or a traceback in the log",
        tries=10_000,
        short=150,
    ),
    "slow": Campaign(
        tried="an ordinary search while 200 hostile clients send slow bodies, half-open requests and bombs",
        lost_if="an answer other than 200, a traceback, a 99th percentile above five times the quiet one, "
        "or an upload that is neither answered nor refused with 503 and a time to try again, or that is not "
        "answered when they have gone",
        tries=600,
        short=40,
    ),
    "kills": Campaign(
        tried="SIGKILL at a random moment of training, refit, indexing, adding images or correcting labels, "
        "then the same work is resumed",
        lost_if="a saved file that cannot be read, an acknowledged vector that is missing, or an end that "
        "differs from the uninterrupted one in any bit",
        tries=200,
        short=8,
    ),
    "disks": Campaign(
        tried="the disk is full, read-only, gone or slow while a run, an index or a table is written",
        lost_if="a traceback, no sentence, a hang, or an old state that cannot be read any more",
        tries=60,
        short=4,
    ),
    "damage": Campaign(
        tried="bytes are flipped, zeroed or cut off in a file that the project reads",
        lost_if="an exception that is not ours, a sentence that names no file, a crash, or another answer "
        "without a word (other than in files that people write)",
        tries=2_200,
        short=170,
    ),
    "processes": Campaign(
        tried="one of two processes under torchrun is killed, or stopped for two seconds, at a random moment",
        lost_if="a hang, a loss that is not reported, or a resumed run that differs in any bit",
        tries=12,
        short=1,
    ),
    "equality": Campaign(
        tried="a loss with its gradient, or all ranking metrics, on random vectors beside brute force, on "
        "the processor or on the pretend accelerator of the tests",
        lost_if="a difference beyond rounding, or an exception",
        tries=5_000,
        short=150,
    ),
}
