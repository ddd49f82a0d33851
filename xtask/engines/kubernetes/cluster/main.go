// Kubernetes in one binary: kube apiserver|controller-manager|scheduler|kubelet FLAGS. Four of them apart would be three times as large.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"apiserver":          apiserver.NewAPIServerCommand,
		"controller-manager": controllers.NewControllerManagerCommand,
		"scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":            func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		println("usage: kube apiserver|controller-manager|scheduler|kubelet FLAGS")
		os.Exit(2)
	}
	command := commands[os.Args[1]]
	os.Args = append([]string{"kube-" + os.Args[1]}, os.Args[2:]...)
	os.Exit(cli.Run(command()))
}
