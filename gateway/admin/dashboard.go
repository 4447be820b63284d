package admin

import (
	_ "embed"
	"net/http"
)

//go:embed dashboard.html
var dashboardPage []byte

// dashboardPolicy lets the page run its own inline script and talk to its own
// server, and nothing else.
const dashboardPolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// dashboard is one page without data of its own: it fetches /v1/status, which
// needs the right to see it.
func dashboard(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", dashboardPolicy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(dashboardPage) // an error is a reader that left
}
