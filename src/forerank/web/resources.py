"""What all requests share, from whichever state of the index they are answered."""

import threading
from concurrent.futures import ThreadPoolExecutor

from forerank.web.group_commit import Adding
from forerank.web.kept_uploads import KeptUploads
from forerank.web.observe import Measurements
from forerank.web.uploads import DECODERS, Decoders, Limits, Uploads


class Resources:
    """Uploads and their bounds, decoders, the turn at the model, and measurements."""

    def __init__(self, limits: Limits) -> None:
        self.uploads, self.decoders, self.kept = Uploads(limits), Decoders(limits), KeptUploads(limits)
        # Threads of their own: what strangers send must not keep thumbnails and other searches waiting.
        self.for_uploads = ThreadPoolExecutor(DECODERS, thread_name_prefix="upload")
        self.model_in_use = threading.Lock()  # one forward pass at a time: it already uses every core
        self.adding = Adding()
        self.measurements = Measurements(lambda: self.uploads.in_progress)

    def close(self) -> None:
        """End the threads and the processes."""
        self.for_uploads.shutdown(wait=False, cancel_futures=True)
        self.decoders.close()
