package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
)

const (
	smallFiles = 100
	smallSize  = 1 << 10
	bigSize    = 256 << 20
	entryCount = 10_000
)

// plain is the least that a server of files does: no token, no rules, no
// atomic replacement. It serves on loopback.
type plain struct {
	http *http.Server
	base string
}

func startPlain() (*plain, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /", func(w http.ResponseWriter, r *http.Request) {
		if err := store(r.URL.Query().Get("path"), r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, r.URL.Query().Get("path")) })
	mux.HandleFunc("GET /list", func(w http.ResponseWriter, r *http.Request) {
		if err := listPlain(w, r.URL.Query().Get("path")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	p := &plain{http: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}, base: "http://" + l.Addr().String()}
	go p.http.Serve(l) //nolint:errcheck // ends with Close
	return p, nil
}

func (p *plain) stop() {
	plainClient.CloseIdleConnections()
	p.http.Close() //nolint:errcheck // nothing is under way
}

func store(path string, r io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func listPlain(w io.Writer, dir string) error {
	type entry struct {
		Path     string    `json:"path"`
		Size     int64     `json:"size"`
		Mode     uint32    `json:"mode"`
		Modified time.Time `json:"modified"`
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	for _, f := range found {
		fi, err := f.Info()
		if err != nil {
			return err
		}
		if err := out.Encode(entry{filepath.Join(dir, f.Name()), fi.Size(), uint32(fi.Mode()), fi.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}

var plainClient = &http.Client{Transport: &http.Transport{DisableCompression: true}}

// do sends a request, hands the answer's body to use, and reads it to its end.
func (p *plain) do(ctx context.Context, method, op, path string, body io.Reader, size int64, use func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, method, p.base+op+"?path="+url.QueryEscape(path), body)
	if err != nil {
		return err
	}
	req.ContentLength = size
	resp, err := plainClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New("bench: plain server: " + resp.Status)
	}
	return use(resp.Body)
}

func discard(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// whole reads r and requires bigSize bytes.
func whole(r io.Reader) error {
	n, err := io.Copy(io.Discard, r)
	if err == nil && n != bigSize {
		err = fmt.Errorf("bench: %d bytes of %d", n, bigSize)
	}
	return err
}

// zeros gives n zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// putAll times put for as many files of the prefix as a turn has.
func putAll(prefix string, put func(path string) error) (time.Duration, error) {
	return timeOf(func() error {
		for i := range smallFiles {
			if err := put(fmt.Sprint(prefix, i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// inNewDir is putAll in a directory of its own, which is made before the time
// and removed after it.
func inNewDir(parent string, put func(path string) error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		dir, err := os.MkdirTemp(parent, "small-")
		if err != nil {
			return 0, err
		}
		took, err := putAll(dir+"/", put)
		return took, errors.Join(err, os.RemoveAll(dir))
	}
}

// transfers measures files on their way in and out beside plain HTTP that
// makes them as durable.
func transfers(ctx context.Context, o Options, d *daemon) ([]Result, error) {
	p, err := startPlain()
	if err != nil {
		return nil, err
	}
	defer p.stop()
	files := execd.Files(d.conn)
	small := bytes.Repeat([]byte("k"), smallSize)
	ours, theirs := filepath.Join(d.dir, "ours"), filepath.Join(d.dir, "theirs")
	put := func(path string) error {
		return files.Write(ctx, path, bytes.NewReader(small), sandbox.WriteOptions{})
	}
	plainPut := func(path string) error {
		return p.do(ctx, http.MethodPut, "/", path, bytes.NewReader(small), smallSize, discard)
	}
	up, upFloor, err := inTurns(o.N, inNewDir(d.dir, put), inNewDir(d.dir, plainPut))
	if err != nil {
		return nil, err
	}
	// Replacing is no single change of a file system, as writing in place is:
	// readers see the old content or the new one, and so does who comes after a crash.
	replace, replaceFloor, err := inTurns(o.N,
		func() (time.Duration, error) { return putAll(ours, put) },
		func() (time.Duration, error) { return putAll(theirs, plainPut) })
	if err != nil {
		return nil, err
	}
	big, bigFloor, err := inTurns(max(o.N/4, 3), func() (time.Duration, error) {
		return timeOf(func() error { return files.Write(ctx, ours, zeros(bigSize), sandbox.WriteOptions{}) })
	}, func() (time.Duration, error) {
		return timeOf(func() error { return p.do(ctx, http.MethodPut, "/", theirs, zeros(bigSize), bigSize, discard) })
	})
	if err != nil {
		return nil, err
	}
	down, downFloor, err := inTurns(max(o.N/4, 3), func() (time.Duration, error) {
		return timeOf(func() error {
			r, err := files.Open(ctx, ours, 0, -1)
			if err != nil {
				return err
			}
			defer r.Close()
			return whole(r)
		})
	}, func() (time.Duration, error) {
		return timeOf(func() error { return p.do(ctx, http.MethodGet, "/file", theirs, nil, 0, whole) })
	})
	if err != nil {
		return nil, err
	}
	const mb = bigSize / 1e6
	memory, err := filesMemory("rss_transfers", d)
	return append(memory,
		measured("upload_1k", "files/s", "<= 1.33 x", perSecond(smallFiles, up), "plain HTTP + fsync", perSecond(smallFiles, upFloor)),
		measured("replace_1k", "files/s", "", perSecond(smallFiles, replace), "plain HTTP in place + fsync", perSecond(smallFiles, replaceFloor)),
		measured("upload_256m", "MB/s", "<= 1.67 x", perSecond(mb, big), "plain HTTP + fsync", perSecond(mb, bigFloor)),
		measured("download_256m", "MB/s", "<= 1.43 x", perSecond(mb, down), "plain HTTP", perSecond(mb, downFloor)),
	), err
}

// listings measures the listing of a large directory.
func listings(ctx context.Context, o Options, d *daemon) ([]Result, error) {
	p, err := startPlain()
	if err != nil {
		return nil, err
	}
	defer p.stop()
	for i := range entryCount {
		if err := os.WriteFile(filepath.Join(d.dir, fmt.Sprintf("entry%05d", i)), nil, 0o644); err != nil {
			return nil, err
		}
	}
	files := execd.Files(d.conn)
	values, floors, err := inTurns(o.N, func() (time.Duration, error) {
		return timeOf(func() error {
			entries, err := files.List(ctx, d.dir, 1)
			if err != nil {
				return err
			}
			n := 0
			for _, err := range entries {
				if err != nil {
					return err
				}
				n++
			}
			if n != entryCount {
				return fmt.Errorf("bench: %d entries of %d", n, entryCount)
			}
			return nil
		})
	}, func() (time.Duration, error) {
		return timeOf(func() error {
			return p.do(ctx, http.MethodGet, "/list", d.dir, nil, 0, func(r io.Reader) error {
				var entry struct {
					Path     string
					Size     int64
					Mode     uint32
					Modified time.Time
				}
				for in := json.NewDecoder(r); ; {
					if err := in.Decode(&entry); err != nil {
						if errors.Is(err, io.EOF) {
							return nil
						}
						return err
					}
				}
			})
		})
	})
	if err != nil {
		return nil, err
	}
	memory, err := filesMemory("rss_list_10k", d)
	return append(memory, timed("list_10k", "<= 1.5 x", values, "ReadDir + JSON by plain HTTP", floors)), err
}
