"""The campaigns by name."""

from campaigns.tally import Campaign

CAMPAIGNS = {
    "images": Campaign(
        tried="an image file with flipped bits, cuts, pieces of other files or edited headers is decoded",
        lost_if="anything but a picture or `BadImageError`; 2 s of processor time; 1 GiB",
        tries=100_000,
        short=1_500,
    ),
}
CAMPAIGNS["kills"] = Campaign(
    tried="SIGKILL at a random moment of training or indexing, then the same work is resumed",
    lost_if="a saved file that cannot be read, an acknowledged vector that is missing, or an end that differs "
    "from the uninterrupted one in any bit",
    tries=200,
    short=7,
)
