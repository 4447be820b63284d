package rank

import _ "embed"

// Helper is sluice.py, the Python client: one file to put beside a training
// script. See its own text for the three lines a loop needs.
//
//go:embed sluice.py
var Helper []byte
