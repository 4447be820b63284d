//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "peers: Linux is needed: the cores' sharing and their accounting are its own")
	os.Exit(1)
}
