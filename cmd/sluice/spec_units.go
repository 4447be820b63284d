package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

var (
	errSize = errors.New("not a size; write it with its unit, as 24GiB or 500MiB")
	errTime = errors.New("not a time; write it with its unit, as 30s, 500ms or 2m")
)

var sizeUnits = map[string]float64{
	"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

// parseSize reads 24GiB, 1.5 GiB, 80GB into bytes. Only 0 goes without a unit:
// a bare number is too easily meant as GiB.
func parseSize(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if s == "0" {
		return 0, nil
	}
	cut := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if cut <= 0 {
		return 0, errSize
	}
	unit, ok := sizeUnits[strings.TrimSpace(s[cut:])]
	n, err := strconv.ParseFloat(s[:cut], 64)
	if !ok || err != nil || n*unit > 1<<60 {
		return 0, errSize
	}
	return int64(math.Round(n * unit)), nil
}

// parseTime reads Go's durations, 1m30s, into ms, at least 1. Only 0 goes
// without a unit.
func parseTime(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if s == "0" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Millisecond {
		return 0, errTime
	}
	return d.Milliseconds(), nil
}
