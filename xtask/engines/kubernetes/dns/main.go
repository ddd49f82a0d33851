// CoreDNS with four plugins only, enough for the names of headless Services.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
)

func main() {
	dnsserver.Directives = []string{"errors", "log", "cache", "kubernetes"}
	coremain.Run()
}
