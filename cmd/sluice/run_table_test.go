package main

import (
	"testing"

	"sluice/nodes/registry"
)

func TestExternalAddress(t *testing.T) {
	for url, want := range map[string]string{
		"http://h:8000":          "h:8000",
		"http://h":               "h:80",
		"http://h:8000/":         "h:8000",
		"http://h:8000/v1":       "h:8000",
		"http://h:8000/v1/":      "h:8000",
		"http://h/team/a":        "h:80/team/a",
		"http://h/team/a/v1":     "h:80/team/a",
		"http://[::1]:8000/v1":   "[::1]:8000",
		"http://[::1]/a%20b/v1/": "[::1]:80/a%20b",
	} {
		m := registry.Model{Spec: registry.ModelSpec{Name: "m", URL: url}}
		if got := external(&m).Addr; got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}
