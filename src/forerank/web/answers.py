"""The shapes of the JSON answers; the API's description is made from them."""

from pydantic import BaseModel, Field


class HitAnswer(BaseModel):
    """One indexed image that was found."""

    rank: int = Field(description="1 is the nearest")
    id: int = Field(description="row of the index: /images/{id}, /api/rows/{id}/search")
    path: str
    label: str | None
    similarity: float = Field(description="cosine, from -1 to 1")
    trusted: bool = Field(description="whether the similarity reaches the calibrated threshold")
    correct: bool | None = Field(description="whether it has the query's label; null where that is not known")
    columns: dict[str, str] = Field(description="further columns of the indexed CSV: category, price, URL")
    folded: list["HitAnswer"] = Field(
        description="images hidden behind this one: near-duplicates, or further images of its class"
    )


class VoteAnswer(BaseModel):
    """What the nearest images are called."""

    label: str
    votes: int = Field(description="how many of the nearest images have this label")
    voters: int = Field(
        description="nearest labelled images that were asked: 7, or as many as a calibrated vote asks"
    )
    similarity: float = Field(description="of the nearest image that has it")
    support: float = Field(description="sum of the similarities of the images that have it, per voter")
    trusted: bool = Field(description="whether the support reaches the threshold of a calibrated vote")


class SearchAnswer(BaseModel):
    """The nearest images of a query."""

    found: bool = Field(description="false: nothing is near enough, the thing is not in the catalogue")
    threshold: float | None = Field(description="null also where several examples were combined")
    label: str | None = Field(description="label of the query, where known")
    answer: VoteAnswer | None = Field(description="the label most of the nearest have; null without labels")
    milliseconds: float
    hits: list[HitAnswer]


class UploadAnswer(BaseModel):
    """A picture that the server keeps for a while."""

    id: str = Field(description="use it as an example: /api/search?like=ID")
    seconds: float = Field(description="how long it is kept, unless many others come")


class RowAnswer(BaseModel):
    """One indexed image."""

    id: int
    path: str
    label: str | None
    columns: dict[str, str]


class GalleryAnswer(BaseModel):
    """A stretch of the gallery."""

    rows: list[RowAnswer]
    next: int | None = Field(description="give it as `after` to go on; null at the end")


class IndexAnswer(BaseModel):
    """What the index is."""

    title: str
    images: int
    dimensions: int
    model: str
    labelled: bool
    columns: list[str] = Field(description="names of the further columns")
    dense: bool = Field(description="whether ids are 0, 1, 2, ... without gaps")
    approximate: bool
    threshold: float | None
    calibrated: bool = Field(description="whether there is a curve of thresholds: /api/threshold")
    map: bool = Field(description="whether there is a map: /api/map")
    precision: str | None = Field(description="what the threshold promises, if the index is calibrated")


class ThresholdPoint(BaseModel):
    """What one threshold would give."""

    similarity: float
    precision: float = Field(description="share of right answers among the answers given")
    answered: float = Field(description="share of queries with a match in the catalogue that get an answer")


class ThresholdAnswer(BaseModel):
    """The threshold in use, and what others would give on the queries it was chosen from."""

    similarity: float
    low: float = Field(description="lower end of the 95% interval of the precision")
    high: float
    absent: float = Field(description="share of the queries that show what is not in the catalogue")
    queries: int
    classes: int
    curve: list[ThresholdPoint] = Field(description="from the highest threshold to the lowest")


class MapAnswer(BaseModel):
    """The map of the collection; the places themselves are at /api/map/points."""

    points: int = Field(description="images on the map")
    missing: int = Field(description="images that came after the map was made")
    labels: list[str] = Field(description="label of each code; empty where the label is not known")


class PenaltyAnswer(BaseModel):
    """One place of a ranked list as a loss sees it."""

    rank: int
    id: int
    label: str | None
    similarity: float
    positive: bool
    charge: float = Field(description="what this positive charges every negative before it: f'(R)")
    penalty: float = Field(description="what this negative pays: the sum over the positives after it")


class PenaltiesAnswer(BaseModel):
    """A ranked list with the penalties of its negatives."""

    loss: str
    positives_below: int = Field(description="positives further down that take part in the penalties")
    considered: int = Field(description="length of the ranked list that was looked at")
    ranking: list[PenaltyAnswer]
    figure: str = Field(description="the same as an HTML fragment with an SVG drawing")


class ErrorAnswer(BaseModel):
    """What was wrong, in one sentence."""

    error: str
