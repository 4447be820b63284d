// Package slo says how well a model is served, what demand is coming, and how many replicas that needs.
//
// It is a pure core: no goroutine, lock, clock or I/O. Time is an argument, fleet time in milliseconds.
package slo
