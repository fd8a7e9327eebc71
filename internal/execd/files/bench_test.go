package files_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
)

// What the service adds is read against the floors: the same work done with
// system calls in this process.

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20, 64 << 20} {
		content := strings.Repeat("x", size)
		b.Run(fmt.Sprint("service/", size), func(b *testing.B) {
			f, dir := setup(b)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				must(b, f.Write(b.Context(), fmt.Sprint(dir, "/", i%100), strings.NewReader(content), sandbox.WriteOptions{}))
			}
		})
		b.Run(fmt.Sprint("floor/", size), func(b *testing.B) {
			dir := b.TempDir()
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				f, err := os.CreateTemp(dir, "x")
				must(b, err)
				_, err = io.WriteString(f, content)
				must(b, err)
				must(b, f.Sync())
				must(b, f.Close())
				must(b, os.Rename(f.Name(), fmt.Sprint(dir, "/", i%100)))
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20, 256 << 20} {
		f, dir := setup(b)
		put(b, dir+"/f", strings.Repeat("x", size))
		b.Run(fmt.Sprint("service/", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				r, err := f.Open(b.Context(), dir+"/f", 0, -1)
				must(b, err)
				n, err := io.Copy(io.Discard, r)
				must(b, err)
				r.Close()
				if n != int64(size) {
					b.Fatal(n)
				}
			}
		})
		b.Run(fmt.Sprint("floor/", size), func(b *testing.B) {
			srv := daemonOf(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, dir+"/f") }))
			b.SetBytes(int64(size))
			for b.Loop() {
				resp, err := srv.Client().Get(srv.URL)
				must(b, err)
				_, err = io.Copy(io.Discard, resp.Body)
				must(b, err)
				resp.Body.Close()
			}
		})
	}
}

func BenchmarkList(b *testing.B) {
	f, dir := setup(b)
	for i := range 10000 {
		put(b, fmt.Sprint(dir, "/file-number-", i), "")
	}
	b.Run("service", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			seq, err := f.List(b.Context(), dir, 1)
			if n := len(collect(b, seq, err)); n != 10000 {
				b.Fatal(n)
			}
		}
	})
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			n := 0
			must(b, filepath.Walk(dir, func(string, os.FileInfo, error) error { n++; return nil }))
		}
	})
}

func BenchmarkStat(b *testing.B) {
	f, dir := setup(b)
	g := f.Beneath(dir)
	for name, f := range map[string]sandbox.Files{"anywhere": f, "beneath": g} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, err := f.Stat(b.Context(), dir)
				must(b, err)
			}
		})
	}
}
