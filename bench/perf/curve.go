package perf

import (
	"slices"
	"sort"
)

// point is one measurement: x tokens or sequences, y ms.
type point struct{ x, y float64 }

// curve is piecewise linear and never falls; x ascends strictly.
type curve []point

// newCurve sorts the points, takes the mean of those with equal x, and pools
// adjacent violators until y never falls. It keeps the slice.
func newCurve(points []point) curve {
	slices.SortFunc(points, func(a, b point) int {
		switch {
		case a.x < b.x:
			return -1
		case a.x > b.x:
			return 1
		}
		return 0
	})
	var c curve
	for i := 0; i < len(points); {
		j, sum := i, 0.0
		for ; j < len(points) && points[j].x == points[i].x; j++ {
			sum += points[j].y
		}
		c = append(c, point{points[i].x, sum / float64(j-i)})
		i = j
	}
	return pooled(c)
}

// pooled is the isotonic regression with equal weights.
func pooled(c curve) curve {
	type block struct {
		mean float64
		n    int
	}
	var blocks []block
	for _, p := range c {
		blocks = append(blocks, block{p.y, 1})
		for len(blocks) > 1 && blocks[len(blocks)-2].mean > blocks[len(blocks)-1].mean {
			a, b := blocks[len(blocks)-2], blocks[len(blocks)-1]
			mean := (a.mean*float64(a.n) + b.mean*float64(b.n)) / float64(a.n+b.n)
			blocks = append(blocks[:len(blocks)-2], block{mean, a.n + b.n})
		}
	}
	i := 0
	for _, b := range blocks {
		for range b.n {
			c[i].y = b.mean
			i++
		}
	}
	return c
}

// at interpolates; before the first point it is the first value, after the
// last one the slope of the last segment goes on.
func (c curve) at(x float64) float64 {
	if x <= c[0].x || len(c) == 1 {
		return c[0].y
	}
	i := sort.Search(len(c), func(i int) bool { return c[i].x >= x })
	i = min(i, len(c)-1)
	a, b := c[i-1], c[i]
	return a.y + (b.y-a.y)*(x-a.x)/(b.x-a.x)
}
