// Package web holds the built console, so that the server needs no files
// beside it. It exists because go:embed reaches only what lies below its own
// package; internal/console serves it.
package web

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// Console gives the files of the built console, and built false with the
// placeholder page alone when the console wasn't built into this program.
func Console() (files fs.FS, built bool) {
	if sub, err := fs.Sub(dist, "dist/console"); err == nil {
		if _, err := fs.Stat(sub, "index.html"); err == nil {
			return sub, true
		}
	}
	sub, err := fs.Sub(dist, "dist")
	if err != nil {
		// Not possible: the directory is named by the embed pattern above.
		return embed.FS{}, false
	}
	return sub, false
}
