"""What follows from each XID and each reading, as a person reviewed it: literals, computed from nothing.

The sources are the NVIDIA and gpud columns of `xid_catalog.csv` and the tables of docs/devices.md. A change of
the policy that moves a code or a limit is made here too, by hand, with its reason in the commit.
"""

XID_BUCKETS: dict[str, str] = {
    "fatal": "9 12 16 18 19 26 27 28 29 30 33 34 35 36 42 47 54 59 61 65 78 79 123 151 163 166 167 169 173",
    "reset": "46 48 62 64 74 95 109 110 119 120 136 140 143 154 155 156 158 171 172",
    "support": (
        "1 2 3 4 5 6 7 10 15 17 20 21 22 23 24 49 50 51 52 53 55 56 57 58 73 81 87 90 91"
        " 111 112 113 114 115 116 117 118 122 124 125 138 142"
    ),
    "degraded": "38 44 63 121 144 145 146 147 148 149 150 168 170",
    "application": (
        "8 11 13 25 31 32 39 40 41 60 68 69 70 71 72 75 76 77 80 82 83 84 85 86 88 89 94 96 97 98 99"
        " 100 101 102 103 104 105 126 127 128 129 130 131 132 133 134 135 139 159"
    ),
    "ignore": "14 37 43 45 66 67 92 93 106 107 108 137 141 152 153 157 160 161 162 164 165",
}
"""The codes of each bucket; every code of the catalogue is in one of them."""

CHOICES: dict[str, str] = {
    "fatal": "cordon", "reset": "reset", "support": "ask", "degraded": "degrade",
    "application": "note", "ignore": "note",
}  # fmt: skip

READINGS: dict[str, tuple[float, float, str, bool, bool]] = {
    "ecc_uncorrected": (1, 60.0, "reset", False, False),
    "ecc_corrected": (1000, 3600.0, "degraded", False, False),
    "row_remap_pending": (1, 0.0, "reset", False, False),
    "row_remap_failure": (1, 0.0, "fatal", False, True),
    "retired_pages": (60, 0.0, "fatal", False, True),
    "pcie_replay": (8, 60.0, "degraded", False, False),
    "nvlink_error": (100, 60.0, "degraded", False, False),
    "throttled": (60.0, 0.0, "degraded", True, True),
    "memory_temperature": (60.0, 0.0, "degraded", True, True),
    "power_limit": (60.0, 0.0, "degraded", True, True),
}
"""Limit, window in seconds, bucket, whether it ends with the state, whether a person is asked."""

READING_ROWS: dict[str, tuple[str, str, str]] = {
    "ecc_uncorrected": ("uncorrectable memory errors", "at one", "reset"),
    "ecc_corrected": ("corrected memory errors", "1,000 within an hour", "no new work"),
    "row_remap_pending": ("row remap pending", "at once", "reset"),
    "row_remap_failure": ("row remap failed", "at once", "node out of service, a person is asked"),
    "retired_pages": ("retired pages (older models)", "at 60", "node out of service, a person is asked"),
    "pcie_replay": ("PCIe replays", "8 within a minute", "no new work"),
    "nvlink_error": ("NVLink errors", "100 within a minute", "no new work"),
    "throttled": ("slowed down by its hardware", "for 60 s", "no new work until it ends"),
    "memory_temperature": ("memory at 95 C or more", "for 60 s", "no new work until it ends"),
    "power_limit": ("power limit a tenth below its own", "for 60 s", "no new work until it ends"),
}
"""The first three columns of the table of docs/devices.md."""
